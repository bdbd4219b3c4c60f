//! Requests and responses of services, as axum's handlers take and return them.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Version};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prost::Message;

use super::{CONTENT, frame, is_grpc, status};
use crate::body::read_within_limits;
use crate::body_budget;
use crate::error::ApiError;

/// Messages of a stream of requests; those of [`Call`] are limited like all bodies.
const STREAMED_BYTES_MAX: usize = 64 << 10;

/// Extracts the one message of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Call<T>(pub T);

impl<T: Message + Default + 'static, S: Send + Sync> FromRequest<S> for Call<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        check(&request)?;
        read_within_limits(request, |bytes, _| frame::read_one(bytes)).await.map(Self)
    }
}

/// Extracts a stream of messages, which are read one by one.
pub(crate) struct Requests<T> {
    body: Body,
    read: BytesMut,
    kind: std::marker::PhantomData<fn() -> T>,
}

impl<T: Message + Default, S: Send + Sync> FromRequest<S> for Requests<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        check(&request)?;
        Ok(Self { body: request.into_body(), read: BytesMut::new(), kind: std::marker::PhantomData })
    }
}

impl<T: Message + Default> Requests<T> {
    /// Returns the next message; `None` when the client has no more.
    pub(crate) async fn next(&mut self) -> Option<Result<T, ApiError>> {
        loop {
            match frame::split(&self.read) {
                Err(error) => return Some(Err(error)),
                Ok(Some((message, rest))) => {
                    let (message, bytes) = (frame::decode(message), self.read.len() - rest.len());
                    self.read.advance(bytes);
                    return Some(message);
                }
                Ok(None) if self.read.len() > STREAMED_BYTES_MAX => {
                    return Some(Err(ApiError::too_large(STREAMED_BYTES_MAX)));
                }
                Ok(None) => {}
            }
            match self.body.frame().await? {
                Ok(frame) => self.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Err(error) => return Some(Err(body_budget::explain(error))),
            }
        }
    }
}

fn check(request: &Request) -> Result<(), ApiError> {
    if !is_grpc(request.headers()) {
        return Err(ApiError::invalid("this is a method of a gRPC service; call it with a gRPC client"));
    }
    // Trailers come with it.
    if request.version() != Version::HTTP_2 {
        return Err(ApiError::invalid("gRPC needs HTTP/2"));
    }
    Ok(())
}

/// The one message of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply<T>(pub T);

impl<T: Message> IntoResponse for Reply<T> {
    fn into_response(self) -> Response {
        let mut bytes = Vec::new();
        frame::write(&self.0, &mut bytes);
        let frames = [Frame::data(Bytes::from(bytes)), Frame::trailers(status::ok())];
        respond(stream::iter(frames))
    }
}

/// Returns a response of several messages, which ends with the first error.
pub(crate) fn replies<T: Message>(messages: impl Stream<Item = Result<T, ApiError>> + Send + 'static) -> Response {
    let end = stream::once(async { Err(None) });
    let messages = messages.map(|message| message.map_err(Some)).chain(end);
    let frames = messages.scan(false, |has_ended, message| {
        let frame = match message {
            _ if *has_ended => return std::future::ready(None),
            Ok(message) => {
                let mut bytes = Vec::new();
                frame::write(&message, &mut bytes);
                Frame::data(Bytes::from(bytes))
            }
            Err(error) => {
                *has_ended = true;
                Frame::trailers(error.as_ref().map_or_else(status::ok, status::trailers))
            }
        };
        std::future::ready(Some(frame))
    });
    respond(frames)
}

fn respond(frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::new(StreamBody::new(frames.map(Ok::<_, Infallible>))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
    response
}
