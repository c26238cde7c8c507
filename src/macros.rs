//! Macros for all modules. They are in scope without an import, because this module stands first in the crate.

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

/// Defines methods of a type, each of which returns one field by value.
macro_rules! getters {
    ($type:ty { $($(#[$doc:meta])* $vis:vis $name:ident: $field:ident -> $value:ty,)* }) => {
        impl $type {
            $($(#[$doc])* #[must_use] $vis const fn $name(&self) -> $value { self.$field })*
        }
    };
}

/// `per_period!(Name, of_rate, "At most `units`")`: constructors by units in a second, a minute and an hour, over one by a rate. The
/// text is continued by ` a second`.
macro_rules! per_period {
    ($limit:ident, $of_rate:ident, $what:literal) => {
        impl $limit {
            per_period!(@ $limit, $of_rate, $what, per_second, "second");
            per_period!(@ $limit, $of_rate, $what, per_minute, "minute");
            per_period!(@ $limit, $of_rate, $what, per_hour, "hour");
        }
    };
    (@ $limit:ident, $of_rate:ident, $what:literal, $name:ident, $period:literal) => {
        #[doc = concat!($what, " a ", $period, " (at least 1; checked when a limiter is built).")]
        ///
        #[doc = concat!("See the [type's example](", stringify!($limit), "#examples).")]
        pub const fn $name(units: u64) -> Self {
            Self::$of_rate(Rate::$name(units))
        }
    };
}

/// Defines methods of a builder, in its `impl`, each of which sets one field: `pub name(argument: Type) => path.to.field = value;`.
macro_rules! setters {
    (const: $($(#[$attribute:meta])* $vis:vis $name:ident($($argument:ident: $type:ty)?) => $($field:ident).+ = $value:expr;)*) => {
        $($(#[$attribute])* $vis const fn $name(mut self $(, $argument: $type)?) -> Self {
            self.$($field).+ = $value;
            self
        })*
    };
    ($($(#[$attribute:meta])* $vis:vis $name:ident($($argument:ident: $type:ty)?) => $($field:ident).+ = $value:expr;)*) => {
        $($(#[$attribute])* $vis fn $name(mut self $(, $argument: $type)?) -> Self {
            self.$($field).+ = $value;
            self
        })*
    };
}

/// `manager_view!("doc", Name, method)`: a type for some of the methods of a manager, which `Manager::method` returns.
macro_rules! manager_view {
    ($doc:literal, $name:ident, $method:ident) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub(crate) struct $name<'a>(pub(super) &'a Arc<Manager>);

        impl Manager {
            #[inline(always)]
            pub(crate) fn $method(self: &Arc<Self>) -> $name<'_> {
                $name(self)
            }
        }
    };
}
