//! Text as one library of incremental automata: tokenizer, chat template, detokenizer, stop strings.
