//! Expressions over the columns of files: predicates, their planning and evaluation, and pruning by statistics.

mod checked;
mod desugar;
mod exact_literals;
mod filter;
mod floats;
mod get_field;
mod guarded;
mod key_set;
mod lossless_cast;
mod operators;
mod page_statistics;
mod predicate;
mod pruner;
mod pruning;
mod refusals;
mod rounding;
mod row_values;
mod semantics;
mod simplify;
pub(crate) mod sql;
mod statistics;
mod time_literals;
mod tokens;
mod value_list;
mod values;
mod widen;

pub(crate) use self::filter::ClosedRange;
pub use self::filter::Filter;
pub(crate) use self::floats::canonicalize;
pub(crate) use self::key_set::KeySet;
pub(crate) use self::page_statistics::{ColumnPageStatistics, IntervalStatistics};
pub use self::predicate::{Bounds, ForeignPredicate, Predicate};
pub(crate) use self::pruning::{FileStatistics, RowGroupStatistics};
pub(crate) use self::semantics::to_physical;
pub(crate) use self::statistics::{Statistics, extreme_to_json, extreme_value, has_bounds};
pub(crate) use self::values::{constant_column, constant_to_json, from_json, is_exact};
