use std::sync::Arc;

use crate::store::{MemoryStore, Store};

async fn new() -> (Arc<dyn Store>, ()) {
    (Arc::new(MemoryStore::new()), ())
}

super::conforms!(new());
