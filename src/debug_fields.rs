//! `Debug` for types that show only some of their fields.

/// `debug_fields!([T] Name<T>, |value| field = value.field)`, with the generics of the `impl` first: it shows these fields, and that there
/// are others.
macro_rules! debug_fields {
    ($([$($generics:tt)*])? $name:ident $(<$($argument:tt),*>)? $(, |$value:ident| $($field:ident = $shown:expr),+)?) => {
        impl $(<$($generics)*>)? std::fmt::Debug for $name $(<$($argument),*>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($name));
                $(let $value = self;
                $(shown.field(stringify!($field), &$shown);)+)?
                shown.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug_fields;
