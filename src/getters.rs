//! Methods that return a field.

/// Defines methods of a type, each of which returns one field by value.
macro_rules! getters {
    ($type:ty { $($(#[$doc:meta])* $vis:vis $name:ident: $field:ident -> $value:ty,)* }) => {
        impl $type {
            $($(#[$doc])* #[must_use] $vis const fn $name(&self) -> $value { self.$field })*
        }
    };
}

pub(crate) use getters;
