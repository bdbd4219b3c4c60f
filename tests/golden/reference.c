// What llama.cpp computes for a model: `reference MODEL CONTEXT <TEXTS`, where texts are separated by a byte of 0 and the first is
// the one whose perplexity is measured. Prints JSON. gemma3.py says how to build and run it.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

#define STEPS 64
#define THREADS 2

static void only_errors(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static struct llama_context *new_context(struct llama_model *model, int tokens) {
    struct llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = tokens;
    parameters.n_threads = parameters.n_threads_batch = THREADS;
    parameters.type_k = parameters.type_v = GGML_TYPE_F16;
    parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    parameters.n_seq_max = 1;
    return llama_init_from_model(model, parameters);
}

// Feeds tokens after those fed so far; all of them give logits.
static void feed(struct llama_context *context, const llama_token *tokens, int count, int start) {
    struct llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = start + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch)) exit(1);
    llama_batch_free(batch);
}

// As llama-perplexity does it: chunks of a context, of which the second half counts.
static void perplexity(struct llama_model *model, llama_token *tokens, int count, int size, int vocabulary) {
    double sum = 0;
    int scored = 0, chunks = count / size;
    llama_token bos = llama_vocab_bos(llama_model_get_vocab(model));
    for (int chunk = 0; chunk < chunks; chunk++) {
        llama_token *from = tokens + chunk * size;
        from[0] = bos;
        struct llama_context *context = new_context(model, size);
        feed(context, from, size, 0);
        for (int i = size / 2; i < size - 1; i++, scored++) {
            const float *logits = llama_get_logits_ith(context, i);
            double largest = -INFINITY, total = 0;
            for (int v = 0; v < vocabulary; v++) largest = fmax(largest, logits[v]);
            for (int v = 0; v < vocabulary; v++) total += exp(logits[v] - largest);
            sum += largest + log(total) - logits[from[i + 1]];
        }
        llama_free(context);
    }
    printf("\"perplexity\": [{\"context\": %d, \"chunks\": %d, \"value\": %.4f}]", size, chunks, exp(sum / scored));
}

static void print_tokens(const char *name, const llama_token *tokens, int count) {
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++) printf("%s%d", i ? ", " : "", tokens[i]);
    printf("]");
}

static void greedy(struct llama_model *model, llama_token *tokens, int count, int vocabulary) {
    llama_token chosen[STEPS];
    float margins[STEPS];
    struct llama_context *context = new_context(model, count + STEPS);
    feed(context, tokens, count, 0);
    for (int step = 0; step < STEPS; step++) {
        const float *logits = llama_get_logits_ith(context, -1);
        int first = 0, second = -1;
        for (int v = 1; v < vocabulary; v++) {
            if (logits[v] > logits[first]) {
                second = first;
                first = v;
            } else if (second < 0 || logits[v] > logits[second]) {
                second = v;
            }
        }
        chosen[step] = first;
        margins[step] = logits[first] - logits[second];
        feed(context, &chosen[step], 1, count + step);
    }
    llama_free(context);
    printf("{");
    print_tokens("tokens", tokens, count);
    printf(", ");
    print_tokens("greedy", chosen, STEPS);
    printf(", \"margins\": [");
    for (int i = 0; i < STEPS; i++) printf("%s%.4f", i ? ", " : "", margins[i]);
    printf("]}");
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    llama_log_set(only_errors, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    int vocabulary = llama_vocab_n_tokens(vocab);
    static char input[1 << 20];
    size_t length = fread(input, 1, sizeof input - 1, stdin), at = 0;
    printf("{");
    for (int number = 0; at < length; number++) {
        char *text = input + at;
        int bytes = (int)strlen(text);
        llama_token *tokens = malloc(sizeof(llama_token) * (bytes + 16));
        int count = llama_tokenize(vocab, text, bytes, tokens, bytes + 16, true, true);
        if (number == 0) {
            perplexity(model, tokens, count, atoi(argv[2]), vocabulary);
            printf(", \"prompts\": [");
        } else {
            if (number > 1) printf(", ");
            greedy(model, tokens, count, vocabulary);
        }
        fflush(stdout);
        free(tokens);
        at += bytes + 1;
    }
    printf("]}\n");
    return 0;
}
