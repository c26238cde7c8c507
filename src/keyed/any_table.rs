use super::table::Table;

/// A table of any width. It is no trait object: a key may be borrowed in any form.
pub(super) enum AnyTable<K> {
    Plain1(Table<K, 1, ()>),
    Plain2(Table<K, 2, ()>),
    Plain4(Table<K, 4, ()>),
    Hashed1(Table<K, 1, u64>),
    Hashed2(Table<K, 2, u64>),
    Hashed4(Table<K, 4, u64>),
}

/// Asks the table, whichever it is.
macro_rules! with_table {
    ($any:expr, |$table:ident| $answer:expr) => {
        match $any {
            $crate::keyed::any_table::AnyTable::Plain1($table) => $answer,
            $crate::keyed::any_table::AnyTable::Plain2($table) => $answer,
            $crate::keyed::any_table::AnyTable::Plain4($table) => $answer,
            $crate::keyed::any_table::AnyTable::Hashed1($table) => $answer,
            $crate::keyed::any_table::AnyTable::Hashed2($table) => $answer,
            $crate::keyed::any_table::AnyTable::Hashed4($table) => $answer,
        }
    };
}

pub(super) use with_table;
