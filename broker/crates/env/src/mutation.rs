//! Deliberate bugs, to see whether the simulation finds them.
//!
//! A place that safety rests on asks `env::mutation("name")`. That is `false` at compile time, unless the feature
//! `mutations` is on, which only the simulation's own check of itself does; the broker's program refuses to be built with it.

/// Whether deliberate bugs are compiled in.
pub const HAS_MUTATIONS: bool = cfg!(feature = "mutations");

#[cfg(feature = "mutations")]
static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Whether the deliberate bug `name` is on.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn mutation(_name: &str) -> bool {
    false
}

/// Whether the deliberate bug `name` is on.
#[cfg(feature = "mutations")]
pub fn mutation(name: &str) -> bool {
    CHOSEN.get().is_some_and(|chosen| chosen == name)
}

/// Turns one deliberate bug on, for the rest of the process. Returns false if that is not possible: one is on already,
/// or none is compiled in.
pub fn choose_mutation(name: &str) -> bool {
    #[cfg(feature = "mutations")]
    return CHOSEN.set(name.to_owned()).is_ok();
    #[cfg(not(feature = "mutations"))]
    {
        let _ = name;
        false
    }
}
