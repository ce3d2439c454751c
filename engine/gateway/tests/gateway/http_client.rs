//! A small HTTP client over hyper, with the calls that the tests make.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, BodyStream, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Hyper, Error};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Keeps connections.
#[derive(Clone, Debug)]
pub(crate) struct Client(Hyper<HttpConnector, Full<Bytes>>);

/// A request in the making.
#[derive(Debug)]
pub(crate) struct RequestBuilder {
    client: Client,
    request: Request<Full<Bytes>>,
}

/// An answer whose body hasn't been read.
#[derive(Debug)]
pub(crate) struct Response(http::Response<Incoming>);

impl Client {
    pub(crate) fn new() -> Self {
        Self(Hyper::builder(TokioExecutor::new()).build_http())
    }

    pub(crate) fn get(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    pub(crate) fn post(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    pub(crate) fn request(&self, method: Method, url: impl AsRef<str>) -> RequestBuilder {
        let request = Request::builder().method(method).uri(url.as_ref());
        RequestBuilder {
            client: self.clone(),
            request: request.body(Full::default()).unwrap(),
        }
    }
}

impl RequestBuilder {
    pub(crate) fn json(self, body: &Value) -> Self {
        self.json_text(body.to_string())
    }

    /// A body that says it's JSON, whatever it is.
    pub(crate) fn json_text(mut self, text: String) -> Self {
        *self.request.body_mut() = Full::from(text);
        self.header("content-type", "application/json")
    }

    pub(crate) fn bearer_auth(self, key: impl AsRef<str>) -> Self {
        self.header("authorization", format!("Bearer {}", key.as_ref()))
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<str>) -> Self {
        let value = HeaderValue::from_str(value.as_ref()).unwrap();
        self.request
            .headers_mut()
            .append(HeaderName::from_static(name), value);
        self
    }

    pub(crate) async fn send(self) -> Result<Response, Error> {
        self.client.0.request(self.request).await.map(Response)
    }
}

impl Response {
    pub(crate) fn status(&self) -> StatusCode {
        self.0.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.0.headers()
    }

    pub(crate) async fn text(self) -> Result<String, hyper::Error> {
        let body = self.0.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// The body as it comes; ends where the connection does.
    pub(crate) fn bytes(self) -> impl Stream<Item = Bytes> + Send {
        BodyStream::new(self.0.into_body())
            .take_while(|frame| std::future::ready(frame.is_ok()))
            .map(|frame| {
                frame
                    .ok()
                    .and_then(|frame| frame.into_data().ok())
                    .unwrap_or_default()
            })
    }
}
