//! Constants that the engine computes while it compiles, before anything is metered: `'a' * 100000000` is one.

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};
use minijinja::value::ValueKind;

/// For lines of dashes and the like.
const BYTES_MAX: f64 = (1 << 20) as f64;
/// Bytes of a number as a text, and of an item of a list.
const NUMBER_BYTES: f64 = 40.0;

/// Whether all constants in a template stay small.
pub(super) fn are_small(template: &Stmt<'_>) -> bool {
    let mut found = Found { is_small: true };
    found.statement(template);
    found.is_small
}

/// What was seen so far. Every expression is looked at once, since a hostile template nests thousands of them.
struct Found {
    is_small: bool,
}

/// An upper bound: how long a constant is as a text, and how large as a number.
#[derive(Clone, Copy)]
struct Size {
    bytes: f64,
    number: f64,
    is_number: bool,
}

impl Found {
    fn statements(&mut self, statements: &[Stmt<'_>]) {
        statements.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.expressions([&emit.expr]),
            Stmt::ForLoop(each) => {
                self.expressions([&each.iter].into_iter().chain(&each.filter_expr));
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(condition) => {
                self.expressions([&condition.expr]);
                self.statements(&condition.true_body);
                self.statements(&condition.false_body);
            }
            Stmt::WithBlock(with) => {
                self.expressions(with.assignments.iter().map(|(_, value)| value));
                self.statements(&with.body);
            }
            Stmt::Set(set) => self.expressions([&set.expr]),
            Stmt::SetBlock(set) => {
                self.expressions(&set.filter);
                self.statements(&set.body);
            }
            Stmt::AutoEscape(escape) => {
                self.expressions([&escape.enabled]);
                self.statements(&escape.body);
            }
            Stmt::FilterBlock(block) => {
                self.expressions([&block.filter]);
                self.statements(&block.body);
            }
            Stmt::Block(block) => self.statements(&block.body),
            Stmt::Macro(each) => {
                self.expressions(&each.defaults);
                self.statements(&each.body);
            }
            Stmt::CallBlock(block) => {
                self.expressions(block.call.args.iter().map(argument));
                self.expressions(&block.macro_decl.defaults);
                self.statements(&block.macro_decl.body);
            }
            Stmt::Do(call) => self.expressions(call.call.args.iter().map(argument)),
            Stmt::Extends(extends) => self.expressions([&extends.name]),
            Stmt::Include(include) => self.expressions([&include.name]),
            Stmt::Import(import) => self.expressions([&import.expr]),
            Stmt::FromImport(import) => self.expressions([&import.expr]),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        }
    }

    fn expressions<'e, 's: 'e>(&mut self, expressions: impl IntoIterator<Item = &'e Expr<'s>>) {
        for expression in expressions {
            self.expression(expression);
        }
    }

    /// The size of a constant; `None` for what is not constant.
    fn expression(&mut self, expression: &Expr<'_>) -> Option<Size> {
        let size = self.size(expression);
        self.is_small &= size.is_none_or(|size| size.bytes <= BYTES_MAX);
        size
    }

    fn size(&mut self, expression: &Expr<'_>) -> Option<Size> {
        match expression {
            Expr::Var(_) => return None,
            Expr::Const(constant) => {
                let value = &constant.value;
                let is_number = value.kind() == ValueKind::Number;
                let number = if is_number { f64::try_from(value.clone()).unwrap_or(f64::INFINITY).abs() } else { 1.0 };
                let bytes = value.as_str().map_or(NUMBER_BYTES, |text| text.len() as f64);
                return Some(Size { bytes, number, is_number });
            }
            Expr::UnaryOp(unary) => return self.expression(&unary.expr),
            Expr::BinOp(binary) => {
                let (left, right) = (self.expression(&binary.left), self.expression(&binary.right));
                return Some(combined(binary.op, left?, right?));
            }
            Expr::List(list) => return self.sum(&list.items),
            Expr::Tuple(tuple) => return self.sum(&tuple.items),
            Expr::Slice(slice) => {
                let parts = [&slice.start, &slice.stop, &slice.step].into_iter().flatten();
                self.expressions([&slice.expr].into_iter().chain(parts));
            }
            Expr::Compare(compare) => {
                self.expressions([&compare.expr].into_iter().chain(compare.ops.iter().map(|operand| &operand.expr)));
            }
            Expr::IfExpr(condition) => {
                let parts = [&condition.test_expr, &condition.true_expr];
                self.expressions(parts.into_iter().chain(&condition.false_expr));
            }
            Expr::Filter(filter) => self.expressions(filter.expr.iter().chain(filter.args.iter().map(argument))),
            Expr::Test(test) => self.expressions([&test.expr].into_iter().chain(test.args.iter().map(argument))),
            Expr::GetAttr(get) => self.expressions([&get.expr]),
            Expr::GetItem(get) => self.expressions([&get.expr, &get.subscript_expr]),
            Expr::Call(call) => self.expressions([&call.expr].into_iter().chain(call.args.iter().map(argument))),
            Expr::Map(map) => self.expressions(map.keys.iter().chain(&map.values)),
        }
        None
    }

    fn sum(&mut self, items: &[Expr<'_>]) -> Option<Size> {
        let mut sum = Some(NUMBER_BYTES);
        for item in items {
            let size = self.expression(item);
            sum = sum.and_then(|sum| Some(sum + size?.bytes));
        }
        sum.map(|bytes| Size { bytes, number: 1.0, is_number: false })
    }
}

fn combined(operator: BinOpKind, left: Size, right: Size) -> Size {
    let is_number = left.is_number && right.is_number;
    let bytes = match operator {
        _ if is_number => NUMBER_BYTES,
        BinOpKind::Mul => left.bytes * right.number.max(1.0) + right.bytes * left.number.max(1.0),
        _ => left.bytes + right.bytes,
    };
    let number = match operator {
        BinOpKind::Mul => left.number * right.number,
        BinOpKind::Add | BinOpKind::Sub => left.number + right.number,
        BinOpKind::Pow | BinOpKind::Div | BinOpKind::FloorDiv => f64::INFINITY,
        _ => left.number.max(right.number),
    };
    Size { bytes, number, is_number }
}

fn argument<'a, 's>(argument: &'a CallArg<'s>) -> &'a Expr<'s> {
    let (CallArg::Pos(value) | CallArg::Kwarg(_, value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value)) =
        argument;
    value
}
