//! Reflection: clients ask what services there are, and what their messages look like.
//!
//! `descriptors.bin` is what protoc makes of the files beside it (`proto/README.md`).

mod messages;

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use prost::Message;

use self::messages::{
    Asked, ErrorResponse, ExtensionNumbers, FileDescriptors, FileSet, Nested, ReflectionRequest, ReflectionResponse,
    Said, ServiceList, ServiceName,
};
use crate::grpc::{Requests, replies};

static FILES: LazyLock<Files> =
    LazyLock::new(|| Files::read(Bytes::from_static(include_bytes!("proto/descriptors.bin"))));

const NOT_FOUND: i32 = 5;
const UNIMPLEMENTED: i32 = 12;

/// The files that describe the services.
#[derive(Debug, Default)]
struct Files {
    /// By name, with those that they import.
    by_name: HashMap<String, (Bytes, Vec<String>)>,
    /// Names of files by what they declare, with its package.
    by_symbol: HashMap<String, String>,
    services: Vec<String>,
}

pub(super) fn has_service(name: &str) -> bool {
    FILES.services.iter().any(|service| service == name)
}

/// Answers each question as it comes.
pub(super) async fn info(requests: Requests<ReflectionRequest>) -> Response {
    replies(stream::unfold(requests, |mut requests| async move {
        let answer = requests.next().await?.map(answer);
        Some((answer, requests))
    }))
}

fn answer(request: ReflectionRequest) -> ReflectionResponse {
    let error = |error_code, error_message: String| Said::Error(ErrorResponse { error_code, error_message });
    let said = match &request.asked {
        Some(Asked::ListServices(_)) => {
            let service = FILES.services.iter().map(|name| ServiceName { name: name.clone() }).collect();
            Said::Services(ServiceList { service })
        }
        Some(Asked::FileByFilename(name)) => {
            FILES.with_imports(name).unwrap_or_else(|| error(NOT_FOUND, format!("there is no file {name}")))
        }
        Some(Asked::FileContainingSymbol(symbol)) => {
            let file = FILES.by_symbol.get(symbol.as_str()).and_then(|name| FILES.with_imports(name));
            file.unwrap_or_else(|| error(NOT_FOUND, format!("there is nothing called {symbol}")))
        }
        Some(Asked::AllExtensionNumbersOfType(base_type_name)) => {
            Said::Extensions(ExtensionNumbers { base_type_name: base_type_name.clone(), extension_number: Vec::new() })
        }
        Some(Asked::FileContainingExtension(_)) => error(NOT_FOUND, "nothing is extended here".to_owned()),
        None => error(UNIMPLEMENTED, "this question is not known".to_owned()),
    };
    ReflectionResponse { valid_host: request.host.clone(), original_request: Some(request), said: Some(said) }
}

impl Files {
    fn read(bytes: Bytes) -> Self {
        let mut files = Self::default();
        // Written at build time, and read in tests.
        for bytes in FileSet::decode(bytes).unwrap_or_default().file {
            let Ok(file) = messages::File::decode(bytes.clone()) else { continue };
            let symbols = file.message.iter().flat_map(|message| message.names(&file.package));
            let services = file.service.iter().map(|service| format!("{}.{}", file.package, service.name));
            let methods = file.service.iter().flat_map(|service| {
                service.nested.iter().map(|method| format!("{}.{}.{}", file.package, service.name, method.name))
            });
            for symbol in symbols.chain(services.clone()).chain(methods) {
                files.by_symbol.insert(symbol, file.name.clone());
            }
            files.services.extend(services);
            files.by_name.insert(file.name, (bytes, file.dependency));
        }
        files
    }

    /// Returns a file, and before it all that it imports.
    fn with_imports(&self, name: &str) -> Option<Said> {
        let mut found = Vec::new();
        self.collect(name, &mut HashSet::new(), &mut found)?;
        // Clients of some languages want what was asked for first.
        found.reverse();
        Some(Said::Files(FileDescriptors { file_descriptor_proto: found }))
    }

    fn collect(&self, name: &str, seen: &mut HashSet<String>, out: &mut Vec<Bytes>) -> Option<()> {
        let (bytes, imports) = self.by_name.get(name)?;
        if seen.insert(name.to_owned()) {
            for import in imports {
                self.collect(import, seen, out)?;
            }
            out.push(bytes.clone());
        }
        Some(())
    }
}

impl Nested {
    /// Returns the full names of this and of what is declared within it.
    fn names(&self, outer: &str) -> Vec<String> {
        let own = format!("{outer}.{}", self.name);
        let within = self.nested.iter().chain(&self.enums).flat_map(|nested| nested.names(&own));
        within.chain([own.clone()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(asked: Asked) -> Option<Vec<Bytes>> {
        match answer(ReflectionRequest { host: String::new(), asked: Some(asked) }).said {
            Some(Said::Files(files)) => Some(files.file_descriptor_proto),
            _ => None,
        }
    }

    #[test]
    fn everything_is_found_by_its_name_with_what_it_needs() {
        assert!(has_service("ruvllm.v1.RuvLlm") && has_service("sglang.grpc.scheduler.SglangScheduler"));
        let named = |name: &str| files(Asked::FileContainingSymbol(name.to_owned()));
        assert_eq!(named("ruvllm.v1.RuvLlm.Generate").unwrap().len(), 1);
        assert_eq!(named("grpc.health.v1.HealthCheckResponse.ServingStatus").unwrap().len(), 1);
        let scheduler = named("sglang.grpc.scheduler.SamplingParams.LogitBiasEntry").unwrap();
        assert_eq!(scheduler.len(), 3, "with what it imports");
        assert_eq!(messages::File::decode(scheduler[0].clone()).unwrap().name, "sglang_scheduler.proto");
        assert_eq!(files(Asked::FileByFilename("google/protobuf/struct.proto".to_owned())).unwrap().len(), 1);
        assert!(named("ruvllm.v1.Nobody").is_none() && files(Asked::FileByFilename(String::new())).is_none());
    }
}
