//! Log probabilities as the routes show them.

use std::collections::BTreeMap;

use kvasir_api::{
    ChatLogprob, ChatLogprobs, Common, CompletionLogprobs, Logprob, PromptLogprob, PromptLogprobs,
    TopChatLogprob,
};
use kvasir_client::types::TokenLogprobs;
use kvasir_text::Text;

/// How tokens are shown.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    text: &'a Text,
    as_token_ids: bool,
}

impl<'a> Shown<'a> {
    pub(super) fn new(text: &'a Text, common: &Common) -> Self {
        Self {
            text,
            as_token_ids: common.return_tokens_as_token_ids,
        }
    }

    /// A token's text; bytes that are no characters by themselves are shown as U+FFFD.
    fn token(&self, id: u32) -> String {
        if self.as_token_ids {
            format!("token_id:{id}")
        } else {
            String::from_utf8_lossy(self.raw(id)).into_owned()
        }
    }

    /// A model's head may have more rows than the tokenizer has tokens; those have no text.
    fn raw(&self, id: u32) -> &'a [u8] {
        self.text.token_bytes(id).unwrap_or_default()
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        if self.as_token_ids {
            self.token(id).into_bytes()
        } else {
            self.raw(id).to_vec()
        }
    }
}

/// Log probabilities of chat tokens with up to `top` alternatives each.
pub(super) fn chat(shown: &Shown<'_>, tokens: &[TokenLogprobs], top: u32) -> ChatLogprobs {
    let content = tokens.iter().map(|token| ChatLogprob {
        token: shown.token(token.token_id),
        logprob: Logprob(token.logprob),
        bytes: shown.bytes(token.token_id),
        top_logprobs: token
            .top
            .iter()
            .take(top as usize)
            .map(|top| TopChatLogprob {
                token: shown.token(top.token_id),
                logprob: Logprob(top.logprob),
                bytes: shown.bytes(top.token_id),
            })
            .collect(),
    });
    ChatLogprobs {
        content: content.collect(),
    }
}

/// Appends completion tokens; `offset` is where the next one starts, in characters. A token without a log
/// probability (the first one of a prompt) has an entry without values.
pub(super) fn push_completion(
    shown: &Shown<'_>,
    logprobs: &mut CompletionLogprobs,
    offset: &mut u64,
    tokens: impl IntoIterator<Item = (u32, Option<TokenLogprobs>)>,
    top: u32,
) {
    for (id, token) in tokens {
        let text = shown.token(id);
        logprobs.text_offset.push(*offset);
        *offset += text.chars().count() as u64;
        logprobs.tokens.push(text);
        logprobs
            .token_logprobs
            .push(token.as_ref().map(|token| Logprob(token.logprob)));
        logprobs.top_logprobs.push(token.map(|token| {
            let top = token
                .top
                .iter()
                .take(top as usize)
                .map(|top| (top.token_id, top.logprob));
            // The token at hand is shown also if it is none of the most likely.
            top.chain([(token.token_id, token.logprob)])
                .map(|(id, logprob)| (shown.token(id), Logprob(logprob)))
                .collect()
        }));
    }
}

/// Log probabilities of a prompt: per token its candidates, none for the first one.
pub(super) fn prompt(shown: &Shown<'_>, tokens: &[TokenLogprobs]) -> PromptLogprobs {
    let candidates = |token: &TokenLogprobs| {
        let top = token
            .top
            .iter()
            .zip(1..)
            .map(|(top, rank)| (top.token_id, top.logprob, rank));
        let all = top.chain([(token.token_id, token.logprob, token.rank)]);
        let entry = |(id, logprob, rank)| {
            let decoded_token = shown.token(id);
            (
                id,
                PromptLogprob {
                    logprob: Logprob(logprob),
                    rank,
                    decoded_token,
                },
            )
        };
        all.map(entry).collect::<BTreeMap<_, _>>()
    };
    tokens
        .iter()
        .enumerate()
        .map(|(i, token)| (i > 0).then(|| candidates(token)))
        .collect()
}
