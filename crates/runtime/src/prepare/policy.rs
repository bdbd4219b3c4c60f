//! Applies router policies: they decide the parameters that a request left unset.

use ruvllm_memory::{MemoryError, Policies, Policy, Routing};
use serde_json::Value;

use crate::Request;

const KIND: &str = "router";

/// Sets the request's unset parameters and returns the decision. The policy for a model precedes the default one.
pub(super) fn route(policies: &Policies, model: &str, request: &mut Request) -> Routing {
    let named = |name: &str| policies.get(&(KIND.to_owned(), name.to_owned()));
    let policy = named(model).or_else(|| named("default"));
    if let Some(policy) = policy {
        apply(policy, request);
    }
    Routing {
        model: model.to_owned(),
        // Known once the prompt is encoded.
        context_bucket: 0,
        temperature: f64::from(request.sampling.temperature),
        top_p: f64::from(request.sampling.top_p),
        confidence: policy.map_or(0.0, |policy| policy.confidence),
        probabilities: [(model.to_owned(), 1.0)].into(),
        policy: policy.map(|policy| format!("{}/{}", policy.kind, policy.name)),
        choice: None,
    }
}

fn apply(policy: &Policy, request: &mut Request) {
    let unset = request.unset;
    let number = |name: &str| policy.parameters.get(name).and_then(Value::as_f64);
    if let Some(temperature) = number("temperature").filter(|_| unset.temperature) {
        request.sampling.temperature = temperature as f32;
    }
    if let Some(top_p) = number("top_p").filter(|_| unset.top_p) {
        request.sampling.top_p = top_p as f32;
    }
    if let Some(max_tokens) = policy.parameters.get("max_tokens").and_then(Value::as_u64).filter(|_| unset.max_tokens) {
        request.max_tokens = usize::try_from(max_tokens).ok();
    }
}

/// Refuses a policy that nothing reads, and one with a mistake, which would spoil every request.
pub fn check_policy(policy: &Policy) -> Result<(), MemoryError> {
    if policy.kind != KIND {
        let problem = format!("nothing reads policies of type {:?}: the only type is {KIND}", policy.kind);
        return Err(MemoryError::Invalid { field: "type", problem });
    }
    let wrong = |name: &str, expected: &str| MemoryError::Invalid {
        field: "parameters",
        problem: format!("{name} of a router's policy must be {expected}"),
    };
    for (name, value) in policy.parameters.as_object().into_iter().flatten() {
        let is_fine = match name.as_str() {
            "temperature" => value.as_f64().is_some_and(|number| (0.0..=100.0).contains(&number)),
            "top_p" => value.as_f64().is_some_and(|number| number > 0.0 && number <= 1.0),
            "max_tokens" => value.as_u64().is_some_and(|number| number > 0),
            _ => return Err(wrong(name, "left out: it knows temperature, top_p and max_tokens")),
        };
        if !is_fine {
            let expected = match name.as_str() {
                "temperature" => "a number from 0 to 100",
                "top_p" => "a number above 0 and at most 1",
                _ => "a whole number above 0",
            };
            return Err(wrong(name, expected));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Prompt, UnsetParams};

    #[test]
    fn a_policy_fills_in_what_was_unset_and_nothing_else() {
        let key = |name: &str| (KIND.to_owned(), name.to_owned());
        let all = Policy::new(KIND, "default", json!({ "temperature": 0.5 }));
        let own = Policy::new(KIND, "smollm2", json!({ "temperature": 0.1, "top_p": 0.5, "max_tokens": 7 }));
        let policies = Policies::from([(key("default"), all), (key("smollm2"), own)]);
        let routed = |model: &str, unset| {
            let mut request = Request { unset, ..Request::new(Prompt::Text("x".into())) };
            let routing = route(&policies, model, &mut request);
            assert_eq!(routing.temperature, f64::from(request.sampling.temperature));
            (request, routing.policy.unwrap())
        };
        let everything = UnsetParams::ALL;
        let (request, policy) = routed("smollm2", everything);
        assert_eq!((request.sampling.temperature, request.sampling.top_p, request.max_tokens), (0.1, 0.5, Some(7)));
        assert_eq!(policy, "router/smollm2");
        let (request, policy) = routed("qwen", everything);
        assert_eq!((request.sampling.temperature, request.max_tokens, policy.as_str()), (0.5, None, "router/default"));
        let (request, _) = routed("smollm2", UnsetParams::default());
        assert_eq!(request, Request::new(Prompt::Text("x".into())));
    }

    #[test]
    fn a_router_with_a_mistake_is_refused_by_name() {
        let check = |parameters| check_policy(&Policy::new(KIND, "default", parameters));
        assert!(check(json!({ "temperature": 0, "top_p": 1, "max_tokens": 5 })).is_ok());
        for (parameters, name) in [
            (json!({ "temperature": -1 }), "temperature"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "top_p": 0 }), "top_p"),
            (json!({ "max_tokens": 0.5 }), "max_tokens"),
            (json!({ "tempreture": 1 }), "tempreture"),
        ] {
            let error = check(parameters).unwrap_err().to_string();
            assert!(error.starts_with("parameters") && error.contains(name), "{error}");
        }
        let unread = check_policy(&Policy::new("kernel", "default", json!({ "set": "avx2" }))).unwrap_err();
        assert!(unread.to_string().contains("kernel"), "{unread}");
    }
}
