//! What a manifest must be for anything in it to be used.

use std::collections::BTreeSet;

use super::{Category, Dtype, KERNELS_MAX, Kernel, Limits, Manifest, ParamType, SCHEMA};
use crate::sandbox::{PAGES_MAX, TABLE_ELEMENTS_MAX};

/// Milliseconds that all other requests may have to wait for.
const BUDGET_MS_MAX: u32 = 100;
const NAME_CHARS_MAX: usize = 64;
const TEXT_CHARS_MAX: usize = 1000;
const PARAMS_MAX: usize = 16;
const DIMS_MAX: usize = 4;
/// Folders and a file.
const PATH_PARTS_MAX: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("kernels.json: {0}")]
    Json(#[source] serde_json::Error),
    #[error("kernels.json: schema is {got}; this version reads {SCHEMA}")]
    Schema { got: u32 },
    #[error("kernels.json: {field} {problem}")]
    Field { field: String, problem: String },
    #[error("kernels.json: two kernels have the id '{0}'")]
    DuplicateId(String),
    #[error("kernels.json: the path '{path}' of kernel '{kernel}' {problem}")]
    Path { kernel: String, path: String, problem: &'static str },
}

fn field(field: impl Into<String>, problem: impl Into<String>) -> ManifestError {
    ManifestError::Field { field: field.into(), problem: problem.into() }
}

impl Manifest {
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        if self.schema != SCHEMA {
            return Err(ManifestError::Schema { got: self.schema });
        }
        check_name("name", &self.name)?;
        for (name, text) in
            [("description", &self.description), ("created", &self.created), ("author.name", &self.author.name)]
        {
            check_text(name, text)?;
        }
        if self.version.to_string().len() > NAME_CHARS_MAX {
            return Err(field("version", format!("is longer than {NAME_CHARS_MAX} characters")));
        }
        if self.kernels.is_empty() || self.kernels.len() > KERNELS_MAX {
            let got = self.kernels.len();
            return Err(field("kernels", format!("must be between 1 and {KERNELS_MAX}, and are {got}")));
        }
        let mut ids = BTreeSet::new();
        for kernel in &self.kernels {
            check_name("a kernel's id", &kernel.id)?;
            if kernel.id == NATIVE {
                return Err(field(
                    "a kernel's id",
                    "cannot be 'native', which names the kernels of the runtime itself",
                ));
            }
            if !ids.insert(&kernel.id) {
                return Err(ManifestError::DuplicateId(kernel.id.clone()));
            }
            kernel.check()?;
        }
        self.check_shared_modules()?;
        self.check_fallbacks()
    }

    /// Kernels of one module are instantiated together.
    fn check_shared_modules(&self) -> Result<(), ManifestError> {
        for (i, kernel) in self.kernels.iter().enumerate() {
            let before = self.kernels[..i].iter().find(|before| before.path == kernel.path);
            if let Some(before) = before
                && (before.hash != kernel.hash || before.limits != kernel.limits)
            {
                let of = format!("hash and limits of '{}' and '{}'", before.id, kernel.id);
                return Err(field(of, format!("must be the same: both are in {}", kernel.path)));
            }
        }
        Ok(())
    }

    fn check_fallbacks(&self) -> Result<(), ManifestError> {
        for (from, to) in &self.fallbacks {
            let name = format!("fallbacks.{from}");
            let Some(kernel) = self.kernel(from) else { return Err(field(name, "is for a kernel that is not there")) };
            let mut at = to;
            for _ in 0..=self.kernels.len() {
                if at == NATIVE {
                    break;
                }
                let Some(next) = self.kernel(at) else {
                    return Err(field(name, format!("names '{at}', which is not there")));
                };
                if (next.category, next.dtypes()) != (kernel.category, kernel.dtypes()) {
                    return Err(field(name, format!("names '{at}', which computes something else")));
                }
                let Some(further) = self.fallbacks.get(at) else { break };
                at = further;
                if at == from {
                    return Err(field(name, "leads back to itself"));
                }
            }
        }
        Ok(())
    }
}

/// What stands for the runtime's own kernels.
const NATIVE: &str = "native";

impl Kernel {
    fn check(&self) -> Result<(), ManifestError> {
        let of = |part: &str| format!("{part} of kernel '{}'", self.id);
        check_text(&of("name"), &self.name)?;
        check_path(self)?;
        if self.entry.is_empty() || self.entry.len() > NAME_CHARS_MAX {
            return Err(field(of("entry"), format!("must have 1 to {NAME_CHARS_MAX} characters")));
        }
        if self.inputs.len() != self.category.inputs() || self.outputs.len() != 1 {
            let inputs = self.category.inputs();
            return Err(field(of("inputs and outputs"), format!("must be {inputs} and 1 for {}", self.category)));
        }
        for tensor in self.inputs.iter().chain(&self.outputs) {
            check_text(&of("a tensor"), &tensor.name)?;
            if tensor.shape.len() > DIMS_MAX {
                return Err(field(of("shape"), format!("has more than {DIMS_MAX} dimensions")));
            }
        }
        self.check_dtypes()?;
        self.check_params()?;
        let Limits { memory_pages, table_elements, budget_ms } = self.limits;
        for (name, got, min, max) in [
            ("memory_pages", memory_pages, 1, PAGES_MAX),
            ("table_elements", table_elements, 0, TABLE_ELEMENTS_MAX),
            ("budget_ms", budget_ms, 1, BUDGET_MS_MAX),
        ] {
            if !(min..=max).contains(&got) {
                return Err(field(of(name), format!("must be between {min} and {max}, and is {got}")));
            }
        }
        let features: usize = self.platforms.iter().map(|platform| 1 + platform.features.len()).sum();
        if self.platforms.is_empty() || features > PARAMS_MAX {
            return Err(field(
                of("platforms"),
                format!("must be at least one, and with features at most {PARAMS_MAX}"),
            ));
        }
        for platform in &self.platforms {
            platform
                .features
                .iter()
                .chain([&platform.runtime])
                .try_for_each(|text| check_name(&of("platforms"), text))?;
        }
        Ok(())
    }

    fn check_dtypes(&self) -> Result<(), ManifestError> {
        use Dtype::{F16, F32, Q4_0, Q8_0};
        let allowed: &[&[Dtype]] = match self.category {
            Category::Rope => &[&[F32, F32, F32], &[F16, F32, F16]],
            Category::KvQuantize => &[&[F32, Q8_0], &[F32, Q4_0]],
            Category::KvDequantize => &[&[Q8_0, F32], &[Q4_0, F32]],
            _ => &[&[F32, F32, F32], &[F16, F16, F16]],
        };
        if allowed.contains(&&self.dtypes()[..]) {
            return Ok(());
        }
        Err(field(
            format!("dtypes of kernel '{}'", self.id),
            format!("must be one of {allowed:?} for {}", self.category),
        ))
    }

    fn check_params(&self) -> Result<(), ManifestError> {
        let name = format!("params of kernel '{}'", self.id);
        if self.params.len() > PARAMS_MAX {
            return Err(field(name, format!("are more than {PARAMS_MAX}")));
        }
        for param in &self.params {
            check_text(&name, &param.name)?;
            let fits = match param.kind {
                ParamType::U32 => param.default.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&param.default),
                ParamType::F32 => (param.default as f32).is_finite(),
            };
            if !fits {
                return Err(field(name, format!("has a default of '{}' that its type cannot hold", param.name)));
            }
        }
        let given: Vec<_> = self.params.iter().map(|param| (&*param.name, param.kind)).collect();
        if !given.starts_with(self.category.params()) {
            return Err(field(name, format!("must begin with {:?} for {}", self.category.params(), self.category)));
        }
        Ok(())
    }

    /// Of inputs and output.
    pub(crate) fn dtypes(&self) -> Vec<Dtype> {
        self.inputs.iter().chain(&self.outputs).map(|tensor| tensor.dtype).collect()
    }
}

/// Lower-case letters, digits, `-`, `_` and `.`; what goes into paths and listings.
fn check_name(name: &str, text: &str) -> Result<(), ManifestError> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && text.len() <= NAME_CHARS_MAX && text.chars().all(is_plain) {
        return Ok(());
    }
    let rule = format!(
        "1 to {NAME_CHARS_MAX} lower-case letters, digits, '-', '_' and '.', and begins with one of the first two"
    );
    Err(field(name, format!("is {:?}, and must be {rule}", text.chars().take(NAME_CHARS_MAX).collect::<String>())))
}

fn check_text(name: &str, text: &str) -> Result<(), ManifestError> {
    if text.len() > TEXT_CHARS_MAX || text.chars().any(char::is_control) {
        return Err(field(name, format!("must have at most {TEXT_CHARS_MAX} bytes and no control characters")));
    }
    Ok(())
}

fn check_path(kernel: &Kernel) -> Result<(), ManifestError> {
    let wrong = |problem| ManifestError::Path { kernel: kernel.id.clone(), path: kernel.path.clone(), problem };
    let path = &kernel.path;
    if path.starts_with(['/', '\\']) || path.contains(':') {
        return Err(wrong("is absolute; it must be within the pack"));
    }
    let parts: Vec<&str> = path.split(['/', '\\']).collect();
    if parts.contains(&"..") {
        return Err(wrong("leads out of the pack"));
    }
    if parts.len() > PATH_PARTS_MAX || path.contains('\\') || parts.iter().any(|part| check_name("", part).is_err()) {
        return Err(wrong("must be a few folders and a file, of lower-case letters, digits, '-', '_' and '.'"));
    }
    if !path.ends_with(".wasm") {
        return Err(wrong("must end with .wasm"));
    }
    Ok(())
}
