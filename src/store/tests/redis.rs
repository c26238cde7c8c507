//! Tests of the Redis store. They need a server.

use crate::store::RedisStore;

crate::store::conformance::tests!(
    RedisStore::builder(super::url("TOLLGATE_REDIS_URL"))
        .build()
        .unwrap()
);
