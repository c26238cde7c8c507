//! Tests of the store in memory.

use crate::store::MemoryStore;

crate::store::conformance::tests!(MemoryStore::new());
