//! `/v1/feedback`: what people think of answers, and forgetting what is kept of a request.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use ruvllm_memory::{Annotation, Feedback, Forget, Forgotten, KnownRequest, LearningStatus, Said, now_ms};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Caller;
use crate::api::Api;
use crate::api::failure::MEMORY_RETRY;
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

/// Longer ids were never given.
const ID_BYTES_MAX: usize = 512;

/// Returns the endpoints that need the scope `inference`.
pub(super) fn router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(give_feedback)).routes(routes!(forget_request)).with_state(api)
}

/// Returns the endpoints of operators.
pub(super) fn admin_router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(status)).routes(routes!(forget)).with_state(api)
}

/// What somebody thinks of an answer: at least one of `score`, `correction` and `reason`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct FeedbackRequest {
    /// The id of the request (the header `x-request-id`) or of the response (its `id`). `#2` behind it means the second choice.
    #[schema(example = "chatcmpl-0123456789abcdef", max_length = 512)]
    pub(crate) request_id: String,
    pub(crate) score: Option<ScoreField>,
    /// The answer that would have been right.
    #[schema(max_length = 262_144)]
    pub(crate) correction: Option<String>,
    #[schema(max_length = 8192)]
    pub(crate) reason: Option<String>,
    /// End user who says so.
    #[schema(max_length = 512)]
    pub(crate) user: Option<String>,
}

/// From -1 (wrong) to 1 (right), `"up"` or `"down"`, `true` or `false`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number from -1 to 1, \"up\", \"down\", true or false")]
pub(crate) enum ScoreField {
    Number(f64),
    Flag(bool),
    Word(String),
}

impl ScoreField {
    fn score(&self) -> Result<f64, ApiError> {
        match self {
            Self::Number(score) => Ok(*score),
            Self::Flag(is_right) => Ok(if *is_right { 1.0 } else { -1.0 }),
            Self::Word(word) => match word.as_str() {
                "up" => Ok(1.0),
                "down" => Ok(-1.0),
                _ => Err(ApiError::invalid_param("score", "a score is a number from -1 to 1, \"up\" or \"down\"")),
            },
        }
    }
}

impl FeedbackRequest {
    fn feedback(&mut self) -> Result<Feedback, ApiError> {
        let feedback = Feedback {
            score: self.score.as_ref().map(ScoreField::score).transpose()?,
            correction: self.correction.take(),
            reason: self.reason.take(),
            withheld: Vec::new(),
        };
        feedback.check()?;
        Ok(feedback)
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedFeedback {
    /// `feedback`
    object: &'static str,
    /// Id of this entry in the witness log.
    pub(crate) id: String,
    /// The request that it is about, as the log knows it.
    pub(crate) request_id: String,
    /// `queued`: it is in the bounded queue of the witness log, which is written within a second.
    stored: &'static str,
    /// Texts that were given and are not kept, since those of the request are not kept either: see `--learn`.
    pub(crate) withheld: Vec<String>,
}

/// Say what you think of an answer
///
/// The feedback becomes an entry of the witness log that points to the request. Of several, the last counts. Its texts
/// are kept only where those of the request are: with `serve --learn`, `keys add --learn` or `serve --memory-text`. A
/// correction, or an answer that was found right, helps the next answers of the same session, user or tenant within two
/// seconds.
#[utoipa::path(post, path = "/v1/feedback", tag = "learning", request_body = FeedbackRequest,
    responses((status = 202, description = "It is accepted", body = AcceptedFeedback),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such request of this tenant, or no memory", body = ErrorBody),
              (status = 503, description = "The queue of the witness log is full", body = ErrorBody)))]
async fn give_feedback(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<FeedbackRequest>,
) -> Result<(StatusCode, Json<AcceptedFeedback>), ApiError> {
    Ok((StatusCode::ACCEPTED, Json(api.accept_feedback(&caller, request).await?)))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForgottenAnswer {
    /// `forgotten`
    object: &'static str,
    /// Requests of which nothing is left but that they were there.
    requests: u64,
    /// Entries of feedback.
    feedback: u64,
    trajectories: u64,
    /// Conversations that held the texts.
    sessions: u64,
    embeddings: u64,
    /// Learned versions that are not served any more, since they were learned from some of it.
    versions: u64,
}

impl From<Forgotten> for ForgottenAnswer {
    fn from(forgotten: Forgotten) -> Self {
        let Forgotten { requests, feedback, trajectories, sessions, embeddings, versions } = forgotten;
        Self { object: "forgotten", requests, feedback, trajectories, sessions, embeddings, versions }
    }
}

/// Forget what is kept of a request
///
/// Removes its texts, tokens and embeddings, the session that it belongs to, and all feedback on it. The witness log notes that
/// it was forgotten.
#[utoipa::path(delete, path = "/v1/feedback/{request_id}", tag = "learning",
    params(("request_id" = String, Path, description = "The id of the request or of its response")),
    responses((status = 200, description = "What was removed", body = ForgottenAnswer),
              (status = 404, description = "There is no such request of this tenant", body = ErrorBody)))]
async fn forget_request(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(request_id): Path<String>,
) -> Result<Json<ForgottenAnswer>, ApiError> {
    caller.require_known()?;
    check_id(&request_id)?;
    let what = Forget::Request { tenant: Some(caller.tenant.to_string()), id: request_id };
    api.forget(&caller, what).await
}

/// What to forget: one of these, `tenant` also beside `request_id` or `user`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetRequest {
    /// The id of a request or of its response.
    request_id: Option<String>,
    /// An end user.
    user: Option<String>,
    tenant: Option<String>,
}

/// Forget a request, a user or a tenant
#[utoipa::path(post, path = "/admin/learn/forget", tag = "admin", request_body = ForgetRequest,
    responses((status = 200, description = "What was removed", body = ForgottenAnswer),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is nothing to forget", body = ErrorBody)))]
async fn forget(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ForgetRequest>,
) -> Result<Json<ForgottenAnswer>, ApiError> {
    let what = match request {
        ForgetRequest { request_id: Some(id), user: None, tenant } => {
            check_id(&id)?;
            Forget::Request { tenant, id }
        }
        ForgetRequest { request_id: None, user: Some(name), tenant } => Forget::User { tenant, name },
        ForgetRequest { request_id: None, user: None, tenant: Some(tenant) } => Forget::Tenant(tenant),
        ForgetRequest { request_id: Some(_), user: Some(_), .. } => {
            return Err(ApiError::invalid_param("user", "name a request or a user, not both"));
        }
        ForgetRequest { request_id: None, user: None, tenant: None } => {
            return Err(ApiError::invalid_param("tenant", "name what to forget: request_id, user or tenant"));
        }
    };
    api.forget(&caller, what).await
}

/// Show what there is to learn from, by tenant
#[utoipa::path(get, path = "/admin/learn", tag = "admin",
    responses((status = 200, description = "Trajectories and feedback of each tenant", body = Object),
              (status = 404, description = "The server has no memory", body = ErrorBody)))]
async fn status(State(api): State<Api>) -> Result<Json<Value>, ApiError> {
    let status: LearningStatus = api.with_memory(|memory| memory.learning().status()).await?;
    Ok(Json(serde_json::json!(status)))
}

impl Api {
    /// Keeps what somebody thinks of an answer.
    pub(super) async fn accept_feedback(
        &self,
        caller: &Caller,
        mut request: FeedbackRequest,
    ) -> Result<AcceptedFeedback, ApiError> {
        caller.require_local("feedback", "request_id")?;
        let feedback = request.feedback()?;
        caller.note_user("user", request.user.as_deref())?;
        let recorder = self.remembering()?.recorder().clone();
        let known = self.known_request(caller, &request.request_id).await?;
        let feedback = if known.keeps_text { feedback } else { feedback.without_texts() };
        let withheld = feedback.withheld.clone();
        let annotation = Annotation {
            request: caller.request.as_str().to_owned(),
            at_ms: now_ms(),
            tenant: known.tenant,
            about: Some(known.request.clone()),
            user: caller.user().map(str::to_owned),
            model: known.model,
            said: Said::Feedback(feedback),
        };
        if !recorder.annotate(annotation) {
            return Err(ApiError::unavailable("the queue of the witness log is full; try again", Some(MEMORY_RETRY)));
        }
        self.remembering()?.feedback_given();
        let id = caller.request.as_str().to_owned();
        Ok(AcceptedFeedback { object: "feedback", id, request_id: known.request, stored: "queued", withheld })
    }

    /// Finds a request of the caller's tenant: among those answered last, or in the store.
    async fn known_request(&self, caller: &Caller, id: &str) -> Result<KnownRequest, ApiError> {
        check_id(id)?;
        if let Some(known) = self.remembering()?.recorder().recent_request(&caller.tenant, id) {
            return Ok(known);
        }
        let (tenant, wanted) = (caller.tenant.to_string(), id.to_owned());
        let found = self.with_memory(move |memory| memory.learning().find_request(Some(&tenant), &wanted)).await?;
        found.ok_or_else(|| {
            let message = format!(
                "there is no request {id:?} of yours in the witness log; give the x-request-id of an answer, or its id"
            );
            ApiError::not_found(message).with_param("request_id").with_code("request_not_found")
        })
    }

    async fn forget(&self, caller: &Caller, what: Forget) -> Result<Json<ForgottenAnswer>, ApiError> {
        let recorder = self.remembering()?.recorder().clone();
        let written_by = caller.request.as_str().to_owned();
        let models = Arc::clone(&self.models);
        let forgotten = self.with_memory(move |memory| {
            let forgotten = recorder.forget(&what, &written_by)?;
            if forgotten.versions > 0 {
                models.forget_learned(memory)?;
            }
            Ok(forgotten)
        });
        let forgotten = forgotten.await;
        // Also where it was not forgotten completely.
        self.remembering()?.forgotten();
        let forgotten = forgotten?;
        Ok(Json(forgotten.into()))
    }
}

pub(super) fn check_id(id: &str) -> Result<(), ApiError> {
    let problem = match id {
        "" => "it is empty",
        id if id.len() > ID_BYTES_MAX => "no id is that long",
        id if id.chars().any(char::is_control) => "an id has no control characters",
        _ => return Ok(()),
    };
    Err(ApiError::invalid_param("request_id", format!("request_id: {problem}")))
}
