//! The way of a request: prepare, constrain, encode, submit, stream, record.
//!
//! This file calls the steps in their order. A step hands its result to the next and never calls an earlier one.

use std::sync::Arc;

use ruvllm_engine::TokenId;

use crate::constrain::OutputRules;
use crate::encode::EncodedPrompt;
use crate::prepare::{Prepared, Routed};
use crate::recall::RecallFor;
use crate::record::RequestRecord;
use crate::submit::{Submitted, submit};
use crate::{
    CancellationToken, Engine, GenerateError, Request, RequestError, RequestIdentity, RequestRecorder, Response, Stream,
};

impl Engine {
    /// Generates the whole answer to a request. Blocks the thread.
    pub fn generate(&self, request: Request) -> Result<Response, GenerateError> {
        let mut stream = self.stream(request)?;
        for piece in &mut stream {
            piece?;
        }
        Ok(stream.into_response())
    }

    /// Starts answering a request. Tokens are computed whether or not the stream is read; dropping it ends the request.
    pub fn stream(&self, request: Request) -> Result<Stream, GenerateError> {
        let mut streams = self.streams(vec![request], &CancellationToken::default())?;
        streams.pop().ok_or(GenerateError::EngineFailed)
    }

    /// Starts answering several requests, which are queued together: all choices of the first, then those of the second. If
    /// one is refused, all are. The model's own defaults fill in unset parameters.
    pub fn streams(
        &self,
        mut requests: Vec<Request>,
        cancellation: &CancellationToken,
    ) -> Result<Vec<Stream>, GenerateError> {
        if requests.iter().any(|request| request.session.is_some()) {
            return Err(GenerateError::NoMemory);
        }
        requests.iter_mut().for_each(|request| self.model().sampling.fill(request));
        Ok(self.start(&requests, cancellation)?.0)
    }

    /// Starts answering several requests with the memory of `recorder`: sessions are restored, policies fill in unset
    /// parameters, and every answer is recorded when it ends.
    pub fn recorded_streams(
        &self,
        recorder: &RequestRecorder,
        mut requests: Vec<Request>,
        identity: &RequestIdentity,
        cancellation: &CancellationToken,
    ) -> Result<Vec<Stream>, RequestError> {
        // Before the policies, which know better.
        requests.iter_mut().for_each(|request| self.model().sampling.fill(request));
        let mut record =
            RequestRecord::begin(recorder, identity, &self.kernel_packs().backend_label(), requests.first());
        let prepared = Prepared::new(recorder.recorder(), &identity.model, requests);
        let Prepared { requests, known_messages, retrieval } =
            prepared.inspect_err(|error| record.clone().refused(error))?;
        record.retrieved(retrieval);
        let stats = recorder.embeddings().stats_for(self, &identity.model);
        record.embeds_with(stats.clone());
        let (mut ready, mut records) = (Vec::with_capacity(requests.len()), Vec::new());
        for Routed { mut request, routing, took } in requests {
            request.embeddings = stats.is_some();
            if identity.learns && request.may_recall {
                let wanted = RecallFor {
                    adapter: request.adapter.as_ref().map(|adapter| adapter.id),
                    tenant: request.tenant.name(),
                    user: identity.user.as_deref(),
                    session: request.session.as_deref(),
                };
                request.recall = recorder.recall_for(self, wanted);
            }
            let mut record = record.clone();
            record.routed(routing, took);
            record.asks(self.tokenizer(), &request, known_messages);
            (0..request.choices).for_each(|_| records.push((ready.len(), record.for_choice(records.len()))));
            ready.push(request);
        }
        let (mut streams, prompts) = self.start(&ready, cancellation).inspect_err(|error| record.failed(error))?;
        let wanted = prompts.into_iter().filter(|_| identity.learns);
        let prompts: Vec<Arc<[TokenId]>> = wanted.map(|prompt| prompt.tokens.into()).collect();
        for (stream, (request, mut record)) in streams.iter_mut().zip(records) {
            prompts.get(request).into_iter().for_each(|tokens| record.encoded(tokens));
            stream.record_with(record);
        }
        Ok(streams)
    }

    /// Constrains, encodes and submits. Every request is encoded before the first is queued, so that a refusal leaves none
    /// of them behind. Returns a stream for each choice, and the prompt of each request.
    pub(crate) fn start(
        &self,
        requests: &[Request],
        cancellation: &CancellationToken,
    ) -> Result<(Vec<Stream>, Vec<EncodedPrompt>), GenerateError> {
        let model = self.model();
        let encode = |request: &Request| -> Result<(OutputRules, EncodedPrompt), GenerateError> {
            // Grammars first: they are cheaper to refuse than a long prompt.
            let rules = model.outputs.compile(request)?;
            Ok((rules, model.encoder.encode_request(request, cancellation)?))
        };
        let encoded = requests.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        let mut submitted = Vec::new();
        for (request, (rules, prompt)) in requests.iter().zip(&encoded) {
            for choice in 0..request.choices {
                submitted.push(submit(model, request, rules, prompt, choice)?);
            }
        }
        let stream = |submitted: Submitted| Ok(Stream::new(Arc::clone(model), submitted.accepted()?));
        let streams = submitted.into_iter().map(stream).collect::<Result<_, GenerateError>>()?;
        Ok((streams, encoded.into_iter().map(|(_, prompt)| prompt).collect()))
    }
}
