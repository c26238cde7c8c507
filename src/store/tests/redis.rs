//! Tests of the Redis store. They need a server, and a cluster.

use crate::store::RedisStore;

crate::store::conformance::tests!(
    RedisStore::builder(super::url("TOLLGATE_REDIS_URL"))
        .build()
        .unwrap()
);

mod cluster {
    use super::super::url;
    use super::RedisStore;

    crate::store::conformance::tests!(
        RedisStore::cluster(url("TOLLGATE_REDIS_CLUSTER_URLS").split(','))
            .build()
            .unwrap()
    );
}
