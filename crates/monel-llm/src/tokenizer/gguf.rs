//! The tokenizer as GGUF metadata has it: which key is which field.

use super::{Tokenizer, TokenizerError, VocabSource};
use monel_gguf::{Metadata, StringArray};

impl<'a> VocabSource<'a> {
    /// Reads `tokenizer.ggml.*`. Nothing is copied but numbers.
    ///
    /// # Errors
    /// [`TokenizerError::Missing`] without a tokenizer in the file, [`TokenizerError::Metadata`] where a value has the wrong
    /// type. Everything else is checked by [`Tokenizer::new`].
    pub fn from_gguf(metadata: &'a Metadata) -> Result<VocabSource<'a>, TokenizerError> {
        fn strings(array: &StringArray) -> Vec<&[u8]> {
            array.iter().collect()
        }
        let model = metadata.get_str("tokenizer.ggml.model")?;
        let missing = |key| TokenizerError::Missing { key, model: model.unwrap_or_default().to_owned() };
        let tokens = metadata.get_array_str("tokenizer.ggml.tokens")?;
        Ok(VocabSource {
            model: model.ok_or_else(|| missing("tokenizer.ggml.model"))?,
            pre: metadata.get_str("tokenizer.ggml.pre")?,
            tokens: strings(tokens.ok_or_else(|| missing("tokenizer.ggml.tokens"))?),
            types: metadata.get_array_i32("tokenizer.ggml.token_type")?.map(|types| types.into_owned()),
            scores: metadata.get_array_f32("tokenizer.ggml.scores")?.map(|scores| scores.into_owned()),
            merges: metadata.get_array_str("tokenizer.ggml.merges")?.map(strings),
            bos: metadata.get_u32("tokenizer.ggml.bos_token_id")?,
            eos: metadata.get_u32("tokenizer.ggml.eos_token_id")?,
            eot: metadata.get_u32("tokenizer.ggml.eot_token_id")?,
            eom: metadata.get_u32("tokenizer.ggml.eom_token_id")?,
            unknown: metadata.get_u32("tokenizer.ggml.unknown_token_id")?,
            add_bos: metadata.get_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.get_bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.get_bool("tokenizer.ggml.add_space_prefix")?,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// As [`VocabSource::from_gguf`] and [`Tokenizer::new`].
    pub fn from_gguf(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(&VocabSource::from_gguf(metadata)?)
    }

    /// The same for a model of `vocabulary` tokens: a file that says it has no vocabulary (`none`, `no_vocab`) gets a
    /// tokenizer that shows ids as `[id]` and reads no text.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`].
    pub fn of_model(metadata: &Metadata, vocabulary: usize) -> Result<Tokenizer, TokenizerError> {
        match metadata.get_str("tokenizer.ggml.model")? {
            Some("none" | "no_vocab") => Tokenizer::ids_only(vocabulary),
            _ => Tokenizer::from_gguf(metadata),
        }
    }
}

impl Tokenizer {
    /// Tokens without text, for models that come without a vocabulary.
    fn ids_only(vocabulary: usize) -> Result<Tokenizer, TokenizerError> {
        let names: Vec<String> = (0..vocabulary).map(|id| format!("[{id}]")).collect();
        let mut tokenizer = Tokenizer::new(&VocabSource {
            model: "llama",
            tokens: names.iter().map(String::as_bytes).collect(),
            scores: Some(vec![0.0; vocabulary]),
            add_bos: Some(false),
            add_space_prefix: Some(false),
            ..VocabSource::default()
        })?;
        tokenizer
            .warn("the model file has no vocabulary: ids are shown as [id], and prompts are given by --ids");
        Ok(tokenizer)
    }
}

impl From<monel_gguf::Error> for TokenizerError {
    fn from(error: monel_gguf::Error) -> TokenizerError {
        TokenizerError::Metadata { reason: error.to_string() }
    }
}
