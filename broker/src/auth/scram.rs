//! SCRAM-SHA-256 (RFC 5802, RFC 7677): both sides as state machines that take and give messages, without I/O.
//!
//! ```text
//!   client                          server
//!   ClientExchange::start ──first──▶ ServerExchange::start    (looks the user's keys up)
//!   ClientExchange::prove ◀──first──
//!                         ──final──▶ ServerExchange::finish   (the client knows the password)
//!   ServerProof::check    ◀──final──                          (so does the server)
//! ```
//!
//! The password never travels, and neither side can play back what it has heard: each exchange has a nonce of both.
//! There is no channel binding.

use std::num::NonZeroU32;

use aws_lc_rs::{constant_time, digest, hmac, pbkdf2};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The mechanism's name in SaslHandshake.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// Iterations that RFC 7677 asks for at least.
pub const ITERATIONS: u32 = 4096;
/// More would let a server keep its clients busy.
const MAX_ITERATIONS: u32 = 1 << 20;
/// No message of an honest peer is longer, in bytes.
const MAX_MESSAGE: usize = 4096;
const LEN: usize = digest::SHA256_OUTPUT_LEN;

/// A 256-bit hash or key.
type Hash = [u8; LEN];

/// Why an exchange ended. Texts name what was wrong, never a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A message that RFC 5802 does not allow, or an extension that is not supported.
    #[error("malformed scram message: {0}")]
    Malformed(&'static str),
    /// The user is unknown or the password wrong; a peer is not told which.
    #[error("unknown user or wrong password")]
    Denied,
    /// The server does not know the password: it is not who it pretends to be.
    #[error("the server does not know the password")]
    ForeignServer,
}

use ScramError::Malformed;

fn hmac_of(key: &[u8], data: &[u8]) -> Hash {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), data);
    copied(tag.as_ref())
}

fn sha256(data: &[u8]) -> Hash {
    copied(digest::digest(&digest::SHA256, data).as_ref())
}

fn copied(bytes: &[u8]) -> Hash {
    let mut hash = [0; LEN];
    hash.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    hash
}

fn xor(a: &Hash, b: &[u8]) -> Hash {
    let mut out = *a;
    out.iter_mut().zip(b).for_each(|(to, from)| *to ^= from);
    out
}

/// A password, salted and stretched: the costly step. It is as good as the password with this salt.
#[derive(Clone)]
pub struct SaltedPassword(Hash);

impl SaltedPassword {
    /// PBKDF2 of `password`, which must be prepared by SASLprep already (ASCII is).
    pub fn derive(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> SaltedPassword {
        let mut out = [0; LEN];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password, &mut out);
        SaltedPassword(out)
    }

    fn client_key(&self) -> Hash {
        hmac_of(&self.0, b"Client Key")
    }

    fn server_key(&self) -> Hash {
        hmac_of(&self.0, b"Server Key")
    }
}

/// What a server keeps of a user's password.
#[derive(Clone)]
pub struct Keys {
    salt: Vec<u8>,
    iterations: NonZeroU32,
    stored_key: Hash,
    server_key: Hash,
}

impl Keys {
    /// The keys of a password that was salted with `salt`.
    pub fn of(password: &SaltedPassword, salt: &[u8], iterations: NonZeroU32) -> Keys {
        Keys {
            salt: salt.to_vec(),
            iterations,
            stored_key: sha256(&password.client_key()),
            server_key: password.server_key(),
        }
    }
}

/// The server's side, between its two messages.
pub struct ServerExchange {
    user: String,
    keys: Keys,
    nonce: String,
    /// client-first-message-bare "," server-first-message
    so_far: String,
    /// What the client must repeat: its GS2 header.
    binding: String,
}

impl ServerExchange {
    /// Answers client-first-message. `nonce` must be fresh randomness in printable ASCII without a comma.
    pub fn start(
        message: &[u8],
        nonce: &str,
        keys: impl FnOnce(&str) -> Option<Keys>,
    ) -> Result<(ServerExchange, String), ScramError> {
        let message = text(message)?;
        let (flag, rest) = message.split_once(',').ok_or(Malformed("no gs2 header"))?;
        // "y": the client could bind the channel and believes that we cannot, which is so.
        if flag != "n" && flag != "y" {
            return Err(Malformed("channel binding is not supported"));
        }
        let (authzid, bare) = rest.split_once(',').ok_or(Malformed("no gs2 header"))?;
        let mut parts = bare.split(',');
        let user = name(value(parts.next(), "n=").ok_or(Malformed("no user name"))?)?;
        let client_nonce = value(parts.next(), "r=")
            .filter(|nonce| !nonce.is_empty())
            .ok_or(Malformed("no nonce"))?;
        let asked_for = match authzid {
            "" => None,
            authzid => Some(name(
                value(Some(authzid), "a=").ok_or(Malformed("bad authorization id"))?,
            )?),
        };
        if asked_for.is_some_and(|id| id != user) {
            return Err(Malformed("one user cannot act for another"));
        }
        let keys = keys(&user).ok_or(ScramError::Denied)?;
        let nonce = format!("{client_nonce}{nonce}");
        let first = format!("r={nonce},s={},i={}", BASE64.encode(&keys.salt), keys.iterations);
        let exchange = ServerExchange {
            user,
            keys,
            nonce,
            so_far: format!("{bare},{first}"),
            binding: BASE64.encode(format!("{flag},{authzid},")),
        };
        Ok((exchange, first))
    }

    /// Judges client-final-message. Gives the user, who is who it says, and server-final-message.
    pub fn finish(self, message: &[u8]) -> Result<(String, String), ScramError> {
        let message = text(message)?;
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(Malformed("no proof"))?;
        let mut parts = without_proof.split(',');
        if value(parts.next(), "c=") != Some(&self.binding) {
            return Err(Malformed("the channel binding has changed"));
        }
        if value(parts.next(), "r=") != Some(&self.nonce) {
            return Err(Malformed("not the nonce of this exchange"));
        }
        let proof = BASE64
            .decode(proof)
            .map_err(|_| Malformed("the proof is not base64"))?;
        if proof.len() != LEN {
            return Err(Malformed("the proof has a wrong length"));
        }
        let auth_message = format!("{},{without_proof}", self.so_far);
        let signature = hmac_of(&self.keys.stored_key, auth_message.as_bytes());
        let client_key = xor(&signature, &proof);
        constant_time::verify_slices_are_equal(&sha256(&client_key), &self.keys.stored_key)
            .map_err(|_| ScramError::Denied)?;
        let signature = hmac_of(&self.keys.server_key, auth_message.as_bytes());
        Ok((self.user, format!("v={}", BASE64.encode(signature))))
    }
}

/// The client's side, after its first message.
pub struct ClientExchange {
    nonce: String,
    first_bare: String,
}

impl ClientExchange {
    /// Begins as `user`; gives client-first-message. `nonce` as in [`ServerExchange::start`].
    pub fn start(user: &str, nonce: &str) -> (ClientExchange, String) {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={user},r={nonce}");
        let message = format!("n,,{first_bare}");
        let nonce = nonce.to_owned();
        (ClientExchange { nonce, first_bare }, message)
    }

    /// Answers server-first-message with client-final-message. `salted` gives the password for a salt and a number of
    /// iterations; it may remember it.
    pub fn prove(
        self,
        message: &[u8],
        salted: impl FnOnce(&[u8], NonZeroU32) -> SaltedPassword,
    ) -> Result<(ServerProof, String), ScramError> {
        let message = text(message)?;
        let mut parts = message.split(',');
        let nonce = value(parts.next(), "r=").ok_or(Malformed("no nonce"))?;
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err(Malformed("the server did not add to the nonce"));
        }
        let salt = value(parts.next(), "s=").ok_or(Malformed("no salt"))?;
        let salt = BASE64
            .decode(salt)
            .map_err(|_| Malformed("the salt is not base64"))?;
        let iterations: u32 = value(parts.next(), "i=")
            .and_then(|count| count.parse().ok())
            .filter(|count| (ITERATIONS..=MAX_ITERATIONS).contains(count))
            .ok_or(Malformed("number of iterations out of bounds"))?;
        let iterations = NonZeroU32::new(iterations).ok_or(Malformed("no iterations"))?;
        let password = salted(&salt, iterations);
        let without_proof = format!("c=biws,r={nonce}");
        let auth_message = format!("{},{message},{without_proof}", self.first_bare);
        let client_key = password.client_key();
        let signature = hmac_of(&sha256(&client_key), auth_message.as_bytes());
        let proof = BASE64.encode(xor(&client_key, &signature));
        let expected = hmac_of(&password.server_key(), auth_message.as_bytes());
        Ok((ServerProof(expected), format!("{without_proof},p={proof}")))
    }
}

/// What the server must answer if it knows the password, too.
pub struct ServerProof(Hash);

impl ServerProof {
    /// Judges server-final-message.
    pub fn check(&self, message: &[u8]) -> Result<(), ScramError> {
        let message = text(message)?;
        let mut parts = message.split(',');
        let signature = value(parts.next(), "v=").ok_or(ScramError::Denied)?;
        let signature = BASE64
            .decode(signature)
            .map_err(|_| Malformed("the signature is not base64"))?;
        constant_time::verify_slices_are_equal(&signature, &self.0).map_err(|_| ScramError::ForeignServer)
    }
}

fn text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MAX_MESSAGE {
        return Err(Malformed("too long"));
    }
    std::str::from_utf8(message).map_err(|_| Malformed("not utf-8"))
}

fn value<'a>(part: Option<&'a str>, name: &str) -> Option<&'a str> {
    part?.strip_prefix(name)
}

/// A user name without its escapes.
fn name(escaped: &str) -> Result<String, ScramError> {
    let plain = escaped.replace("=2C", ",").replace("=3D", "=");
    let escapes = escaped.matches('=').count();
    if escapes != escaped.matches("=2C").count() + escaped.matches("=3D").count() {
        return Err(Malformed("bad escape in the user name"));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const SERVER_FIRST: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn iterations() -> NonZeroU32 {
        NonZeroU32::new(ITERATIONS).unwrap()
    }

    fn keys(password: &[u8]) -> Keys {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Keys::of(
            &SaltedPassword::derive(password, &salt, iterations()),
            &salt,
            iterations(),
        )
    }

    fn server(first: &str) -> Result<(ServerExchange, String), ScramError> {
        ServerExchange::start(first.as_bytes(), SERVER_NONCE, |user| {
            (user == "user").then(|| keys(b"pencil"))
        })
    }

    fn client(password: &[u8]) -> (ServerProof, String) {
        let (client, first) = ClientExchange::start("user", CLIENT_NONCE);
        assert_eq!(first, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        client
            .prove(SERVER_FIRST.as_bytes(), |salt, count| {
                SaltedPassword::derive(password, salt, count)
            })
            .unwrap()
    }

    #[test]
    fn the_example_of_rfc_7677() {
        let (exchange, first) = server("n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
        assert_eq!(first, SERVER_FIRST);
        let (proof, last) = client(b"pencil");
        assert_eq!(last, CLIENT_FINAL);
        assert_eq!(
            exchange.finish(last.as_bytes()),
            Ok(("user".to_owned(), SERVER_FINAL.to_owned()))
        );
        assert_eq!(proof.check(SERVER_FINAL.as_bytes()), Ok(()));
    }

    #[test]
    fn a_wrong_password_is_denied_on_either_side() {
        let (exchange, _) = server("n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
        let (proof, last) = client(b"pen");
        assert_eq!(exchange.finish(last.as_bytes()), Err(ScramError::Denied));
        assert_eq!(
            proof.check(SERVER_FINAL.as_bytes()),
            Err(ScramError::ForeignServer)
        );
        assert_eq!(proof.check(b"e=invalid-proof"), Err(ScramError::Denied));
        assert_eq!(server("n,,n=nobody,r=x").err(), Some(ScramError::Denied));
    }

    #[test]
    fn a_message_heard_before_is_of_no_use() {
        let (exchange, _) = ServerExchange::start(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", "other", |_| {
            Some(keys(b"pencil"))
        })
        .unwrap();
        assert!(matches!(
            exchange.finish(CLIENT_FINAL.as_bytes()),
            Err(Malformed(_))
        ));
    }

    #[test]
    fn what_the_rfc_does_not_allow_is_refused() {
        for first in [
            "",
            "n",
            "n,",
            "n,,",
            "n,,r=x",
            "n,,n=user",
            "n,,n=user,r=",
            "p=tls-unique,,n=user,r=x",
            "n,a=other,n=user,r=x",
            "n,b=user,n=user,r=x",
            "n,,m=ext,n=user,r=x",
            "n,,n=us=er,r=x",
            "n,,n=us=,r=x",
        ] {
            assert!(matches!(server(first).err(), Some(Malformed(_))), "{first}");
        }
        assert!(server("y,a=user,n=user,r=x,tokenauth=true").is_ok());
        let long = format!("n,,n=user,r={}", "x".repeat(5000));
        assert!(server(&long).is_err());
        for last in [
            "",
            "c=biws",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO",
            "c=eSws,r=NONCE,p=AAAA",
            "c=biws,r=other,p=AAAA",
            "c=biws,r=NONCE,p=!",
            "c=biws,r=NONCE,p=AAAA",
            "r=NONCE,c=biws,p=AAAA",
        ] {
            let (exchange, _) = server("n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
            let last = last.replace("NONCE", &format!("{CLIENT_NONCE}{SERVER_NONCE}"));
            assert!(
                matches!(exchange.finish(last.as_bytes()), Err(Malformed(_))),
                "{last}"
            );
        }
        for first in [
            "",
            "r=abc",
            "r=abc,s=AAAA,i=4096",
            "r=other,s=AAAA,i=4096",
            "r=abcd,s=!,i=4096",
            "r=abcd,s=AAAA,i=1",
            "r=abcd,s=AAAA,i=99999999",
            "m=x,r=abcd,s=AAAA,i=4096",
        ] {
            let (client, _) = ClientExchange::start("user", "abc");
            let refused = client.prove(first.as_bytes(), |salt, count| {
                SaltedPassword::derive(b"", salt, count)
            });
            assert!(matches!(refused.err(), Some(Malformed(_))), "{first}");
        }
    }

    #[test]
    fn names_are_escaped_and_come_back() {
        let (_, first) = ClientExchange::start("a,b=c", "n");
        assert_eq!(first, "n,,n=a=2Cb=3Dc,r=n");
        let seen = std::cell::RefCell::new(String::new());
        let _ = ServerExchange::start(first.as_bytes(), "x", |user| {
            seen.replace(user.to_owned());
            None
        });
        assert_eq!(seen.into_inner(), "a,b=c");
    }
}
