//! The messages of reflection, which are the same in its versions v1 and v1alpha, and what is read of descriptors.

use bytes::Bytes;
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(in crate::api::grpc) struct ReflectionRequest {
    #[prost(string, tag = "1")]
    pub host: String,
    #[prost(oneof = "Asked", tags = "3, 4, 5, 6, 7")]
    pub asked: Option<Asked>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::api::grpc) enum Asked {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::api::grpc) struct ExtensionRequest {
    #[prost(string, tag = "1")]
    containing_type: String,
    #[prost(int32, tag = "2")]
    extension_number: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReflectionResponse {
    #[prost(string, tag = "1")]
    pub valid_host: String,
    #[prost(message, optional, tag = "2")]
    pub original_request: Option<ReflectionRequest>,
    #[prost(oneof = "Said", tags = "4, 5, 6, 7")]
    pub said: Option<Said>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Said {
    #[prost(message, tag = "4")]
    Files(FileDescriptors),
    #[prost(message, tag = "5")]
    Extensions(ExtensionNumbers),
    #[prost(message, tag = "6")]
    Services(ServiceList),
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FileDescriptors {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub file_descriptor_proto: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExtensionNumbers {
    #[prost(string, tag = "1")]
    pub base_type_name: String,
    #[prost(int32, repeated, tag = "2")]
    pub extension_number: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServiceList {
    #[prost(message, repeated, tag = "1")]
    pub service: Vec<ServiceName>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ServiceName {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ErrorResponse {
    #[prost(int32, tag = "1")]
    pub error_code: i32,
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// `FileDescriptorSet`, with its files as they are.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FileSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub file: Vec<Bytes>,
}

/// `FileDescriptorProto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct File {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub package: String,
    #[prost(string, repeated, tag = "3")]
    pub dependency: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    pub message: Vec<Nested>,
    #[prost(message, repeated, tag = "6")]
    pub service: Vec<Service>,
}

/// `DescriptorProto`, and the name of an enum.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Nested {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub nested: Vec<Nested>,
    #[prost(message, repeated, tag = "4")]
    pub enums: Vec<Nested>,
}

/// `ServiceDescriptorProto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Service {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub nested: Vec<ServiceName>,
}
