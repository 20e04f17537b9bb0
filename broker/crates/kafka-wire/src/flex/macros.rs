//! `flex_struct!` and `flex_enum!`.

/// Defines a struct with [`Encode`](crate::flex::Encode) and [`Decode`](crate::flex::Decode).
///
/// It derives `Debug`, `Clone` and `PartialEq`; more derives may be given as attributes. Fields are written in
/// the order they stand, then the tagged section. Fields in `tagged { N => pub name: Option<T>, }` are written
/// only when they are `Some`. Types must not contain themselves: depth would then be the sender's choice.
#[macro_export]
macro_rules! flex_struct {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$fmeta:meta])* pub $field:ident : $ty:ty ),*
            $( , $( tagged {
                $( $(#[$tmeta:meta])* $tag:literal => pub $tfield:ident : Option<$tty:ty> ),* $(,)?
            } )? )?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
            $( $( $( $(#[$tmeta])* pub $tfield: Option<$tty>, )* )? )?
        }

        impl $crate::flex::Encode for $name {
            fn encode(&self, out: &mut $crate::flex::BytesMut) {
                $( $crate::flex::Encode::encode(&self.$field, out); )*
                let tags: u32 = 0 $( $( $( + u32::from(self.$tfield.is_some()) )* )? )?;
                $crate::flex::put_uvarint(out, tags);
                $( $( $(
                    if let Some(value) = &self.$tfield {
                        $crate::flex::put_tagged(out, $tag, value);
                    }
                )* )? )?
            }
        }

        impl $crate::flex::Decode for $name {
            const MIN_SIZE: usize = 1 $( + <$ty as $crate::flex::Decode>::MIN_SIZE )*;

            fn decode(
                input: &mut $crate::flex::Bytes,
            ) -> ::core::result::Result<Self, $crate::DecodeError> {
                $( let $field = <$ty as $crate::flex::Decode>::decode(input)?; )*
                $( $( $( let mut $tfield: Option<$tty> = None; )* )? )?
                $crate::flex::get_tagged(input, |tag, _value| {
                    match tag {
                        $( $( $(
                            $tag => $tfield = Some(<$tty as $crate::flex::Decode>::from_bytes(_value)?),
                        )* )? )?
                        _ => {}
                    }
                    Ok(())
                })?;
                Ok(Self { $( $field, )* $( $( $( $tfield, )* )? )? })
            }
        }
    };
}

/// Defines an enum with [`Encode`](crate::flex::Encode) and [`Decode`](crate::flex::Decode): one discriminant
/// byte, then the payload if the variant has one.
///
/// It derives `Debug`, `Clone` and `PartialEq`; more derives may be given as attributes. Variants are
/// `N => Name` or `N => Name(Type)`. An unknown discriminant is an error: unlike a tag it cannot be skipped.
#[macro_export]
macro_rules! flex_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$vmeta:meta])* $tag:literal => $variant:ident $( ( $ty:ty ) )? ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis enum $name {
            $( $(#[$vmeta])* $variant $( ($ty) )?, )*
        }

        impl $crate::flex::Encode for $name {
            fn encode(&self, out: &mut $crate::flex::BytesMut) {
                match self {
                    $(
                        Self::$variant $( ($crate::__flex_bind!(value, $ty)) )? => {
                            <u8 as $crate::flex::Encode>::encode(&$tag, out);
                            $( <$ty as $crate::flex::Encode>::encode(value, out); )?
                        }
                    )*
                }
            }
        }

        impl $crate::flex::Decode for $name {
            const MIN_SIZE: usize = 1;

            fn decode(
                input: &mut $crate::flex::Bytes,
            ) -> ::core::result::Result<Self, $crate::DecodeError> {
                match <u8 as $crate::flex::Decode>::decode(input)? {
                    $( $tag => Ok(Self::$variant $( (<$ty as $crate::flex::Decode>::decode(input)?) )?), )*
                    other => Err($crate::DecodeError::Tag { what: stringify!($name), value: other.into() }),
                }
            }
        }
    };
}

/// Binds a payload in a pattern; a repetition needs its type, the pattern does not.
#[doc(hidden)]
#[macro_export]
macro_rules! __flex_bind {
    ($value:ident, $ty:ty) => {
        $value
    };
}
