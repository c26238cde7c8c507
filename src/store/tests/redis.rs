use std::sync::Arc;

use crate::store::{RedisStore, Store};

async fn new() -> (Arc<dyn Store>, ()) {
    (Arc::new(RedisStore::builder(super::url("TOLLGATE_REDIS_URL")).build().unwrap()), ())
}

super::conforms!(new());
