//! A store from outside of this crate: the example in the docs of `Store`.

// The docs show the same file.
include!("support/map_store.rs");

tollgate::store::conformance::tests!(MapStore::new());

mod broken {
    use tollgate::store::conformance::check;

    use super::*;

    /// A store that loses returned places.
    #[derive(Debug)]
    struct Forgets(MapStore);

    impl Store for Forgets {
        fn name(&self) -> String {
            self.0.name()
        }

        fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
            self.0.supports(policy)
        }

        fn call(&self, mut call: Call) -> StoreFuture<Reply> {
            call.returns.clear();
            self.0.call(call)
        }

        fn keys(
            &self,
            limiter: &Arc<str>,
            from: Option<Vec<u8>>,
            max: usize,
        ) -> StoreFuture<KeyPage> {
            self.0.keys(limiter, from, max)
        }

        fn reset(&self, scope: Scope) -> StoreFuture<()> {
            self.0.reset(scope)
        }

        fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
            self.0.purge(limiter, max)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_suite_says_what_is_wrong_with_a_store_that_does_not_conform() {
        let broken = tollgate::store::conformance::leases_come_back_once(Forgets(MapStore::new()))
            .await
            .unwrap_err();
        assert_eq!(
            broken.to_string(),
            "`leases_come_back_once` does not hold: the places left after a return of one of three, and of one that is not known: \
             expected 1, got 0"
        );
        let broken = check(Forgets(MapStore::new())).await.unwrap_err();
        assert_eq!(
            broken.claim, "random_calls_have_the_replies_of_the_rules",
            "{broken}"
        );
    }
}

#[tokio::test]
async fn a_limiter_works_over_a_store_outside_the_crate() {
    let store = MapStore::new();
    let [one, other] = [(); 2].map(|()| {
        tollgate::SharedLimiter::new(store.clone(), "api", "1 concurrent and 10/min").unwrap()
    });
    let permit = one.acquire().await.unwrap();
    assert!(other.try_acquire().await.is_err());
    drop(permit);
    assert!(other.acquire().await.unwrap().settle(3));
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert_eq!(one.limits().await.unwrap()[1].remaining, 6);
}
