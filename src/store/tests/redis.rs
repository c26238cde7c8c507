//! Tests of the Redis store. They need a server, and a cluster.

use std::time::Duration;

use crate::store::RedisStore;

/// A machine that is busy answers late, which is no fault of the store.
const PATIENT: Duration = Duration::from_secs(5);

crate::store::conformance::tests!(
    RedisStore::builder(super::url("TOLLGATE_REDIS_URL"))
        .timeout(PATIENT)
        .build()
        .unwrap()
);

mod cluster {
    use super::super::url;
    use super::{PATIENT, RedisStore};

    crate::store::conformance::tests!(
        RedisStore::cluster(url("TOLLGATE_REDIS_CLUSTER_URLS").split(','))
            .timeout(PATIENT)
            .build()
            .unwrap()
    );
}
