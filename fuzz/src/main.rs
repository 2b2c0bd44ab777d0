//! libFuzzer on one kind of bytes: `PDS_FUZZ=KIND pds-fuzz …`. `PDS_FUZZ_SEEDS=FOLDER pds-fuzz` writes what all kinds
//! begin with.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

/// What the bytes are given to.
static TARGET: LazyLock<pds::testing::FuzzCheck> = LazyLock::new(|| {
    let kind = std::env::var("PDS_FUZZ").unwrap_or_default();
    let check = pds::testing::FUZZ_CHECKS
        .iter()
        .find(|(name, _)| *name == kind);
    check.expect("PDS_FUZZ names a kind of bytes").1
});

libfuzzer_sys::fuzz_target!(
    init: {
        if let Ok(folder) = std::env::var("PDS_FUZZ_SEEDS") {
            write_seeds(Path::new(&folder)).expect("the seeds can be written");
            #[expect(clippy::exit, reason = "libFuzzer has no other way out")]
            std::process::exit(0);
        }
        LazyLock::force(&TARGET);
    },
    |bytes: &[u8]| TARGET(bytes)
);

fn write_seeds(corpus: &Path) -> std::io::Result<()> {
    for (number, (kind, bytes)) in pds_fuzz::seeds().into_iter().enumerate() {
        let folder = corpus.join(kind);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
