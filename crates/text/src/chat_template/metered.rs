//! The instructions of a template, with those that build values replaced by ones that are metered, and those that treat
//! values otherwise than Python by ones that do as it does.

use std::collections::BTreeMap;

use minijinja::Value;
use minijinja::machinery::{Instruction, Instructions};

use super::operators::{
    ADD, AT_LEAST, AT_MOST, ATTRIBUTE, BUILT, BUILT_BY_CALL, CONCAT, CONTAINED, DIFFERENT, EQUAL, GREATER, INCLUDE,
    ITEM, ITERATED, LESS, MULTIPLY, REMAINDER, RETURNED, SLICE, STORED,
};
use super::python::item::is_name_of_attribute;

/// Not one of the filters that the engine remembers by number.
const UNNUMBERED: u8 = !0;

pub(super) fn metered_blocks<'s>(blocks: &BTreeMap<&'s str, Instructions<'s>>) -> BTreeMap<&'s str, Instructions<'s>> {
    blocks.iter().map(|(name, block)| (*name, metered(block))).collect()
}

pub(super) fn metered<'s>(plain: &Instructions<'s>) -> Instructions<'s> {
    let groups: Vec<Vec<Instruction<'s>>> = (0..).map_while(|at| plain.get(at)).map(group).collect();
    // Where the group of each instruction begins; jumps may also lead behind the last.
    let mut starts = vec![0];
    for group in &groups {
        starts.push(starts[starts.len() - 1] + group.len() as u32);
    }
    let mut metered = Instructions::new(plain.name(), plain.source());
    for (at, group) in groups.into_iter().enumerate() {
        for instruction in group {
            let instruction = moved(instruction, &starts);
            match (plain.get_span(at as u32), plain.get_line(at as u32)) {
                (Some(span), _) => metered.add_with_span(instruction, span),
                (None, Some(line)) => metered.add_with_line(instruction, line as u16),
                (None, None) => metered.add(instruction),
            };
        }
    }
    metered
}

/// What is done instead of an instruction.
fn group<'s>(plain: &Instruction<'s>) -> Vec<Instruction<'s>> {
    let filter = |name, arguments| Instruction::ApplyFilter(name, Some(arguments), UNNUMBERED);
    match plain {
        Instruction::StringConcat => vec![filter(CONCAT, 2)],
        Instruction::Add => vec![filter(ADD, 2)],
        Instruction::Mul => vec![filter(MULTIPLY, 2)],
        Instruction::Rem => vec![filter(REMAINDER, 2)],
        Instruction::Eq => vec![filter(EQUAL, 2)],
        Instruction::Ne => vec![filter(DIFFERENT, 2)],
        Instruction::Lt => vec![filter(LESS, 2)],
        Instruction::Lte => vec![filter(AT_MOST, 2)],
        Instruction::Gt => vec![filter(GREATER, 2)],
        Instruction::Gte => vec![filter(AT_LEAST, 2)],
        Instruction::In => vec![filter(CONTAINED, 2)],
        Instruction::GetItem => vec![filter(ITEM, 2)],
        Instruction::GetAttr(name) if is_name_of_attribute(name) => {
            vec![Instruction::LoadConst(Value::from(*name)), filter(ATTRIBUTE, 2)]
        }
        Instruction::Slice => vec![filter(SLICE, 4), filter(RETURNED, 1)],
        Instruction::PushLoop(_) => vec![filter(ITERATED, 1), plain.clone()],
        // Through the formatter, which meters.
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit],
        Instruction::BuildList(_) | Instruction::BuildTuple(_) | Instruction::BuildMap(_) => {
            vec![plain.clone(), filter(BUILT, 1)]
        }
        // `dict` and `namespace` among them.
        Instruction::CallFunction(..) => vec![plain.clone(), filter(BUILT_BY_CALL, 1)],
        Instruction::ApplyFilter(..) | Instruction::CallMethod(..) | Instruction::CallObject(_) => {
            vec![plain.clone(), filter(RETURNED, 1)]
        }
        // The namespace is above the value.
        Instruction::SetAttr(_) => vec![Instruction::Swap, filter(STORED, 1), Instruction::Swap, plain.clone()],
        // There is nothing to include but the template itself, which would not be metered.
        Instruction::Include(_) | Instruction::LoadBlocks => vec![filter(INCLUDE, 1), plain.clone()],
        _ => vec![plain.clone()],
    }
}

fn moved<'s>(instruction: Instruction<'s>, starts: &[u32]) -> Instruction<'s> {
    let to = |target: u32| starts.get(target as usize).copied().unwrap_or(target);
    match instruction {
        Instruction::Jump(target) => Instruction::Jump(to(target)),
        Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(to(target)),
        Instruction::JumpIfFalseOrPop(target) => Instruction::JumpIfFalseOrPop(to(target)),
        Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(to(target)),
        Instruction::Iterate(target) => Instruction::Iterate(to(target)),
        Instruction::BuildMacro(name, target, flags) => Instruction::BuildMacro(name, to(target), flags),
        other => other,
    }
}
