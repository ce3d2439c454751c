//! Nothing is written by a replica that doesn't hold the lease.
//!
//! The lease's keeper says until when writing is allowed; every request that changes something is held against that clock
//! right before it leaves, in one place that no caller can forget. The clock goes on while the machine sleeps and while the
//! process is stopped. What was already on its way when the lease ended can't be called back: it carries the uid or version
//! of what was read, so that it can't undo the work of another replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::{Method, Request};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

/// How long the API server may take to begin its answer.
const ANSWER: Duration = Duration::from_secs(15);

/// Writing isn't allowed.
#[derive(Debug, thiserror::Error)]
#[error("this replica doesn't hold the lease (any more): nothing is written")]
pub(crate) struct Fenced;

/// The API server doesn't answer.
#[derive(Debug, thiserror::Error)]
#[error("the API server didn't answer within {} s", ANSWER.as_secs())]
struct NoAnswer;

/// Until when writing is allowed.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    until: AtomicU64,
}

/// Time since the machine was started, sleep included.
pub(crate) fn uptime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

impl Fence {
    /// Allows writing until `until`, on the clock of [`uptime`].
    pub(crate) fn open_until(&self, until: Duration) {
        self.until
            .store(u64::try_from(until.as_millis()).unwrap_or(0), Ordering::SeqCst);
    }

    /// Allows nothing.
    pub(crate) fn close(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Until when writing is allowed.
    pub(crate) fn until(&self) -> Duration {
        Duration::from_millis(self.until.load(Ordering::SeqCst))
    }

    /// Whether writing is allowed at `now`.
    pub(crate) fn check(&self, now: Duration) -> Result<(), Fenced> {
        if now < self.until() { Ok(()) } else { Err(Fenced) }
    }
}

/// Puts the fence in front of a client.
#[derive(Clone, Debug)]
pub(crate) struct FenceLayer(pub(crate) Option<Arc<Fence>>);

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceService {
            inner,
            fence: self.0.clone(),
        }
    }
}

/// A client behind a fence.
pub(crate) struct FenceService<S> {
    inner: S,
    fence: Option<Arc<Fence>>,
}

impl<S> Service<Request<Body>> for FenceService<S>
where
    S: Service<Request<Body>>,
    S::Future: Send + 'static,
    S::Response: 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let writes = !matches!(*request.method(), Method::GET | Method::HEAD);
        if writes
            && let Some(fence) = &self.fence
            && let Err(error) = fence.check(uptime())
        {
            return Box::pin(async move { Err(error.into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            match tokio::time::timeout(ANSWER, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(NoAnswer.into()),
            }
        })
    }
}

/// Whether a request failed because of the fence.
pub(crate) fn is_fenced(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if inner.is::<Fenced>() {
            return true;
        }
        cause = inner.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_closed_until_it_is_opened_and_closes_by_itself() {
        let fence = Fence::default();
        let second = Duration::from_secs(1);
        assert!(fence.check(Duration::ZERO).is_err());
        fence.open_until(second * 10);
        assert!(fence.check(second * 9).is_ok());
        assert!(fence.check(second * 10).is_err());
        fence.open_until(second * 20);
        assert!(fence.check(second * 19).is_ok());
        fence.close();
        assert!(fence.check(Duration::ZERO).is_err());
    }

    async fn send(fence: &Arc<Fence>, method: Method) -> Result<(), BoxError> {
        let inner = tower::service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(()) });
        let mut service = FenceLayer(Some(Arc::clone(fence))).layer(inner);
        let request = Request::builder().method(method).body(Body::empty()).unwrap();
        service.call(request).await
    }

    #[tokio::test]
    async fn reading_passes_a_closed_fence_and_writing_does_not() {
        let fence = Arc::new(Fence::default());
        assert!(send(&fence, Method::GET).await.is_ok());
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let error = send(&fence, method.clone()).await.unwrap_err();
            assert!(error.is::<Fenced>(), "{error}");
            let error = kube::Error::Service(error);
            assert!(is_fenced(&error));
            fence.open_until(uptime() + Duration::from_mins(1));
            assert!(send(&fence, method).await.is_ok());
            fence.close();
        }
    }
}
