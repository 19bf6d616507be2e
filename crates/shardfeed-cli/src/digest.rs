use shardfeed::{Batch, IGNORE_LABEL, key, mix};

/// A number for the sequences of a batch. Those of a step's ranks, added up, are the same at every world size.
pub fn batch_digest(batch: &Batch) -> u64 {
    let ids: Vec<i64> = batch.input_ids().iter().collect();
    let labels: Vec<i64> = batch.labels().iter().collect();
    let documents: Vec<i64> = batch.document_ids().iter().collect();
    let rows =
        ids.chunks(batch.seq_len).zip(labels.chunks(batch.seq_len)).zip(documents.chunks(batch.seq_len));
    let real_rows = rows.filter(|(_, documents)| documents[0] >= 0);
    real_rows
        .map(|((ids, labels), _)| {
            let words = ids.iter().zip(labels);
            words.fold(key(&[]), |hash, (&id, &label)| mix(mix(hash ^ id as u64) ^ label as u64))
        })
        .fold(0, u64::wrapping_add)
}

/// A number for a collection of tokens, whatever their order.
pub fn token_digest(tokens: impl Iterator<Item = u32>) -> (u64, u64) {
    tokens.fold((0, 0), |(count, sum), token| (count + 1, sum.wrapping_add(mix(u64::from(token)))))
}

/// The input tokens of a batch that are not padding.
pub fn input_tokens(batch: &Batch) -> impl Iterator<Item = u32> + '_ {
    batch
        .input_ids()
        .iter()
        .zip(batch.document_ids().iter())
        .filter(|(_, document)| *document >= 0)
        .map(|(id, _)| id as u32)
}

/// The labels of a batch that are not masked.
pub fn label_tokens(batch: &Batch) -> impl Iterator<Item = u32> + '_ {
    batch.labels().iter().filter(|&label| label != i64::from(IGNORE_LABEL)).map(|label| label as u32)
}
