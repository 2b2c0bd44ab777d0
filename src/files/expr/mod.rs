//! Expressions over the columns of files: predicates, their planning and evaluation, and pruning by statistics.
//!
//! The way of a predicate of SQL:
//!
//! | step | modules |
//! | --- | --- |
//! | it is parsed and planned | `sql`, `tokens`, `dialect` |
//! | shorthand is written out | `desugar`, `negations`, `quantified`, `row_values` |
//! | columns and literals get types that compare exactly | `widen`, `exact_literals`, `searched_lists`, `time_ranges` |
//! | what DataFusion would evaluate to something else is refused | `refusals`, `text_refusals` |
//! | it is simplified | `simplify`, `lossless_cast` |
//! | rows are evaluated, otherwise where DataFusion differs | `filter`, `semantics`, `checked`, `guarded`, `sliced` |
//! | files, row groups and pages are left out by statistics | `pruner`, `pruning`, `page_statistics`, `value_list` |

mod calls;
mod checked;
mod decimal_literals;
mod desugar;
mod dialect;
mod exact_decimals;
mod exact_literals;
mod exact_texts;
mod filter;
mod float_rounding;
mod floats;
mod forward;
mod functions;
mod get_field;
mod guarded;
mod joined_texts;
mod key_set;
mod logarithms;
mod lossless_cast;
mod negations;
mod operators;
mod page_statistics;
mod predicate;
mod pruner;
mod pruning;
mod quantified;
mod refusals;
mod rounding;
mod row_values;
mod searched_lists;
mod semantics;
mod simplify;
mod sliced;
mod split_texts;
pub(crate) mod sql;
mod statistics;
mod text_functions;
mod text_refusals;
mod text_sizes;
mod time_casts;
mod time_comparisons;
mod time_functions;
mod time_literals;
mod time_ranges;
mod tokens;
mod truncation;
mod value_list;
mod values;
mod widen;

pub(crate) use self::filter::ClosedRange;
pub use self::filter::Filter;
pub(crate) use self::floats::{canonicalize, has_floats};
pub(crate) use self::key_set::KeySet;
pub(crate) use self::page_statistics::{ColumnPageStatistics, IntervalStatistics};
pub use self::predicate::{Bounds, ForeignPredicate, Predicate};
pub(crate) use self::pruning::{FileStatistics, RowGroupStatistics};
pub(crate) use self::semantics::to_physical;
pub(crate) use self::statistics::{Statistics, extreme_to_json, extreme_value, has_bounds};
pub(crate) use self::values::{constant_column, constant_to_json, from_json, is_exact};
pub(crate) use self::widen::without_runs;
