//! Whether llama.cpp was built to use what the processor has. A comparison with a crippled peer says nothing.

use crate::machine::Machine;

/// A processor feature as the kernel names it, and as llama.cpp's system info does.
const REQUIRED: [(&str, &str); 5] = [
    ("avx2", "AVX2"),
    ("avx512f", "AVX512"),
    ("avx512_vnni", "AVX512_VNNI"),
    ("avx512_bf16", "AVX512_BF16"),
    ("amx_int8", "AMX_INT8"),
];

/// What is missing in llama.cpp's build, judging by its system info line.
pub fn missing(machine: &Machine, system_info: &str) -> Vec<String> {
    let has = |name: &str| system_info.split(['|', ':']).any(|part| part.trim() == format!("{name} = 1"));
    let of_processor = REQUIRED.iter().filter(|(feature, _)| machine.has(feature)).map(|(_, name)| *name);
    of_processor.chain(["REPACK"]).filter(|name| !has(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(features: &[&str]) -> Machine {
        Machine {
            cpu: String::new(),
            features: features.iter().map(|name| (*name).to_owned()).collect(),
            cores: 2,
            threads: 2,
            memory_bytes: None,
            load_average: None,
        }
    }

    #[test]
    fn a_build_without_what_the_processor_has_is_named() {
        let info = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | AMX_INT8 = 1 | REPACK = 1 | ";
        assert!(missing(&machine(&["avx2", "avx512f", "amx_int8"]), info).is_empty());
        assert_eq!(missing(&machine(&["avx2", "avx512_vnni"]), info), ["AVX512_VNNI"]);
        let portable = "CPU : SSE3 = 1 | AVX2 = 1 | ";
        assert_eq!(missing(&machine(&["avx2", "amx_int8"]), portable), ["AMX_INT8", "REPACK"]);
    }
}
