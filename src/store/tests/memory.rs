use crate::store::MemoryStore;

crate::store::conformance::tests!(MemoryStore::new());
