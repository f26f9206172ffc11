"""One file per provider: where to call, how to translate, where usage is, how errors map."""
