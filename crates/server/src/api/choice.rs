//! Finds the model of a request, or chooses one where the request leaves that open.

use ruvllm_runtime::{Prompt, Request, RoutedModel, features_of};

use super::{Api, charges};
use crate::access::Caller;
use crate::error::ApiError;
use crate::models::{AskedAdapters, ModelError, ModelInUse};

/// What to do where no model can be chosen.
pub(super) const NAME_IT: &str = "name a model instead of \"auto\"";

/// Why a request has no model.
#[derive(Debug)]
pub(super) enum NoModel {
    Model(ModelError),
    /// What it asks for cannot be had of a model that is not named.
    Request(ApiError),
}

impl From<ModelError> for NoModel {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl From<ApiError> for NoModel {
    fn from(error: ApiError) -> Self {
        Self::Request(error)
    }
}

impl From<NoModel> for ApiError {
    fn from(error: NoModel) -> Self {
        match error {
            NoModel::Model(error) => error.into(),
            NoModel::Request(error) => error,
        }
    }
}

impl Api {
    /// Returns whether finding the model takes more of a request than its name.
    pub(super) fn sees_request(&self, name: &str, caller: &Caller) -> bool {
        self.models.is_auto(name) || (caller.learns && self.router.is_some())
    }

    /// Returns the model that a request names, with its adapters. For `auto` it is one that can do what is asked, chosen by
    /// what became of similar requests of the same tenant.
    pub(super) async fn model_for(
        &self,
        name: &str,
        adapters: &AskedAdapters,
        caller: &Caller,
        requests: &[Request],
    ) -> Result<ModelInUse, NoModel> {
        if !self.models.is_auto(name) {
            let model = self.named(name, adapters, caller).await?;
            // What is answered with an adapter says nothing of the model alone.
            let is_alone = *adapters == AskedAdapters::Default && self.models.is_model(name);
            let routed = if is_alone { self.note_named(&model, caller, requests) } else { None };
            return Ok(model.with_choice(routed, false));
        }
        if *adapters != AskedAdapters::Default {
            let message = format!("an adapter belongs to a model; {NAME_IT}");
            return Err(ApiError::invalid_param("adapter", message).into());
        }
        if requests.iter().any(|request| matches!(request.prompt, Prompt::Tokens(_))) {
            let message = format!("token ids mean something to one model only; {NAME_IT}");
            return Err(ApiError::invalid_param("prompt", message).into());
        }
        if let Some(model) = self.model_of_session(caller, requests).await? {
            return Ok(self.named(&model, adapters, caller).await?.with_choice(None, true));
        }
        let (model, routed) = self.choose(caller, requests).unwrap_or_else(|| (name.to_owned(), None));
        Ok(self.named(&model, adapters, caller).await?.with_choice(routed, true))
    }

    async fn named(&self, name: &str, adapters: &AskedAdapters, caller: &Caller) -> Result<ModelInUse, ModelError> {
        self.models.get_adapted(name, adapters, caller.asker()).await
    }

    /// Returns the model that a session is a conversation with, if there is such a session.
    async fn model_of_session(&self, caller: &Caller, requests: &[Request]) -> Result<Option<String>, ApiError> {
        let Some(session) = requests.iter().find_map(|request| request.session.clone()) else { return Ok(None) };
        caller.require_session()?;
        let Some(memory) = self.memory.clone() else { return Ok(None) };
        let tenant = caller.tenant.clone();
        let found = tokio::task::spawn_blocking(move || memory.recorder().session(&tenant, &session));
        // A memory that fails is told of when the request is prepared.
        let found = found.await.map_err(|_| ApiError::internal("the session could not be read"))?;
        Ok(found.ok().flatten().map(|session| session.model))
    }

    /// Chooses among the models that can do what is asked. There is a choice for those that take part in learning; others
    /// get the default. `None` if the server has no model.
    fn choose(&self, caller: &Caller, requests: &[Request]) -> Option<(String, Option<RoutedModel>)> {
        let default = self.models.default_model()?;
        let candidates = able(self.models.candidates(), requests);
        let names: Vec<&str> = candidates.iter().map(|model| &*model.name).collect();
        // Where the default cannot do it, the first that can takes its place.
        let place = names.iter().position(|name| *name == default).unwrap_or(0);
        match (&self.router, requests.first().and_then(features_of)) {
            (Some(router), Some(features)) if caller.learns && names.len() > 1 => {
                let routed = router.choose(&caller.tenant, &names, place, &features);
                Some((routed.model.clone(), Some(routed)))
            }
            _ => Some((names.get(place).map_or(default, |name| (*name).to_owned()), None)),
        }
    }

    /// Returns what is learned from a request that names its model, where `auto` could have been another.
    fn note_named(&self, model: &ModelInUse, caller: &Caller, requests: &[Request]) -> Option<RoutedModel> {
        if !caller.learns || self.router.is_none() || model.runner.generator().is_none() {
            return None;
        }
        let candidates = self.models.candidates();
        if candidates.len() < 2 || !candidates.iter().any(|candidate| candidate.name == model.name) {
            return None;
        }
        let features = features_of(requests.first()?)?;
        Some(RoutedModel::named(&model.name, &features))
    }
}

/// Returns the models that can do what is asked, as far as that can be told before it is encoded: those with a chat
/// template for conversations, and with room for the prompt. If none seems to have room, those with most.
fn able(mut candidates: Vec<ModelInUse>, requests: &[Request]) -> Vec<ModelInUse> {
    let is_chat = requests.iter().any(|request| matches!(request.prompt, Prompt::Messages(_)));
    candidates.retain(|model| model.runner.generator().is_some_and(|engine| !is_chat || engine.has_chat_template()));
    let needed = requests.iter().map(needed_tokens).max().unwrap_or(0);
    if candidates.iter().any(|model| model.runner.context() >= needed) {
        candidates.retain(|model| model.runner.context() >= needed);
    } else if let Some(most) = candidates.iter().map(|model| model.runner.context()).max() {
        candidates.retain(|model| model.runner.context() == most);
    }
    candidates
}

fn needed_tokens(request: &Request) -> usize {
    let answer = if request.clamps_max_tokens { 1 } else { request.max_tokens.unwrap_or(1) };
    charges::of_prompt(&request.prompt).saturating_add(answer)
}
