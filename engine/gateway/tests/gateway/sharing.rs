//! Several gateways with one Redis server.

use crate::redis_server::Server;
use crate::support::*;

/// Two gateways in front of one engine, and the server that they share limits through.
struct Pair {
    redis: Server,
    gateways: Vec<TestGateway>,
    _engine: TestEngine,
}

impl Pair {
    async fn open(limits: &str) -> Self {
        let redis = Server::start().await;
        let url = redis.socket().with_extension("url");
        std::fs::write(&url, redis.url()).unwrap();
        let options = GatewayOptions {
            tenants: vec![
                ("a", format!("models: \"*\", limits: {{{limits}}}")),
                ("b", format!("models: \"*\", limits: {{{limits}}}")),
            ],
            more: format!(
                "limits: {{replicas: 2, store: {{redisUrlFile: {}}}}}",
                url.display()
            ),
        };
        let engine = TestEngine::start(EngineOptions::default()).await;
        let mut gateways = Vec::new();
        for _ in 0..2 {
            let gateway = TestGateway::start(&[engine.address], options.clone()).await;
            gateways.push(gateway.with_engines(1).await);
        }
        Self {
            redis,
            gateways,
            _engine: engine,
        }
    }

    /// How a request of one token is answered.
    async fn ask(&self, gateway: usize, tenant: &str) -> u16 {
        self.gateways[gateway].complete(tenant, body("1", 1)).await.status
    }

    async fn shares(&self, gateway: usize) -> bool {
        self.gateways[gateway]
            .metric("kvasir_gateway_limits_shared")
            .await
            == 1.0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_tenant_had_at_one_gateway_it_lacks_at_the_other() {
    let pair = Pair::open("requestsPerMinute: 4").await;
    for gateway in [0, 0, 0, 1] {
        assert_eq!(pair.ask(gateway, "a").await, 200);
    }
    assert_eq!((pair.ask(0, "a").await, pair.ask(1, "a").await), (429, 429));
    assert_eq!((pair.ask(0, "b").await, pair.ask(1, "b").await), (200, 200));
    assert!(pair.shares(0).await && pair.shares(1).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_each_gateway_enforces_its_share_and_says_so() {
    let mut pair = Pair::open("requestsPerMinute: 4").await;
    pair.redis.kill();
    for gateway in [0, 1] {
        assert_eq!(pair.ask(gateway, "a").await, 200);
        assert_eq!(pair.ask(gateway, "a").await, 200);
        assert_eq!(pair.ask(gateway, "a").await, 429);
        assert!(!pair.shares(gateway).await);
    }
    pair.redis.run().await;
    eventually("shared limits", async || {
        pair.shares(0).await && pair.shares(1).await
    })
    .await;
    // Each has told of its two.
    eventually("a tenant without room", async || {
        pair.ask(0, "a").await == 429 && pair.ask(1, "a").await == 429
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_password_may_lie_in_a_file_of_its_own() {
    let redis = Server::start().await;
    redis.require("secret");
    let (url, password) = (
        redis.socket().with_extension("url"),
        redis.socket().with_extension("password"),
    );
    std::fs::write(&url, redis.url()).unwrap();
    std::fs::write(&password, "secret\n").unwrap();
    let engine = TestEngine::start(EngineOptions::default()).await;
    for (more, shares) in [
        (format!(", passwordFile: {}", password.display()), 1.0),
        (String::new(), 0.0),
    ] {
        let options = GatewayOptions {
            tenants: vec![("a", "models: \"*\", limits: {requestsPerMinute: 4}".to_owned())],
            more: format!("limits: {{store: {{redisUrlFile: {}{more}}}}}", url.display()),
        };
        let gateway = TestGateway::start(&[engine.address], options)
            .await
            .with_engines(1)
            .await;
        assert_eq!(gateway.complete("a", body("1", 1)).await.status, 200);
        let shared = gateway.metric("kvasir_gateway_limits_shared").await;
        assert!((shared - shares).abs() < 0.5, "{more}: {shared}");
    }
}
