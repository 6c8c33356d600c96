"""A slow reference implementation, position by position, easy to compare with the paper."""

import itertools

import torch
import torch.nn.functional as F


def hidden_states(
    model, input_ids, attention_mask=None, position_ids=None, encoder_ids=None, encoder_mask=None, **inputs
):
    """Return the hidden states, from the stock parts of the model. Encoder-decoder models need `encoder_ids`."""
    if encoder_ids is None:
        return model.base_model(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, **inputs
        ).last_hidden_state
    encoded = model.get_encoder()(encoder_ids, attention_mask=encoder_mask).last_hidden_state
    hidden = model.get_decoder()(
        input_ids,
        attention_mask=attention_mask,
        encoder_hidden_states=encoded,
        encoder_attention_mask=encoder_mask,
        **inputs,
    ).last_hidden_state
    return hidden * model.config.d_model**-0.5 if getattr(model.config, "scale_decoder_outputs", False) else hidden


def logits_of(model, hidden):
    """Apply the output embedding, the separate logit bias of some models, and the soft cap of others."""
    logits = model.get_output_embeddings()(hidden)
    if hasattr(model, "final_logits_bias"):
        logits = logits + model.final_logits_bias[0]
    bound = getattr(model.config, "final_logit_softcapping", None)
    return logits if bound is None else bound * torch.tanh(logits / bound)


def documents(batch_size, length, attention_mask=None, position_ids=None) -> list[list[int]]:
    """Return a document number for each token; -1 for padding."""
    numbers = []
    for b in range(batch_size):
        row, number = [], 0
        for t in range(length):
            if attention_mask is not None and attention_mask[b, t] == 0:
                row.append(-1)
                number += 1
                continue
            if t > 0 and position_ids is not None and position_ids[b, t] != position_ids[b, t - 1] + 1:
                number += 1
            row.append(number)
        numbers.append(row)
    return numbers


def extrapolation(embeddings: torch.Tensor) -> torch.Tensor:
    """Return the conjugate term of n embeddings: the next embedding if the n-level difference were zero."""
    last_column = []
    column = list(embeddings)
    while column:
        last_column.append(column[-1])
        column = [after - before for before, after in itertools.pairwise(column)]
    return sum(last_column)


def scale_gradient(tensor, factor):
    return factor * tensor + (1 - factor) * tensor.detach()


def head_prediction(model, hidden, input_ids, b, t, n, detach=True):
    """Return head n's prediction ê of token t+1+n, from position t of row b."""
    is_shared = model.config.ngram_head_reads == "previous+token"
    head, state = (
        model.ngram_heads[0 if is_shared else n - 1],
        scale_gradient(hidden[b, t], model.config.head_gradient),
    )
    known = [model.get_output_embeddings().weight[token] for token in input_ids[b, t + 1 : t + 1 + n]]
    known = [embedding.detach() if detach else embedding for embedding in known]
    if model.config.ngram_head_reads == "hidden":
        prediction = head.fc_out(head.activation(head.fc_in(state)))
    else:
        # A shared head is applied n times, to one more token each time; any other once, to all of them.
        prediction = state
        for tokens in [[token] for token in known] if is_shared else [known]:
            size = prediction.detach().norm()
            inputs = torch.cat([prediction, *(embedding / embedding.norm() * size for embedding in tokens)])
            prediction = prediction + head.fc_out(head.activation(head.fc_in(inputs)))
    return prediction + extrapolation(torch.stack(known)) if model.config.ngram_target == "wdr" else prediction


def combined_loss(model, predictions: list[list[tuple[torch.Tensor, torch.Tensor]]], num_items=None):
    """Return the loss and the mean NLL of each depth, from lists of predictions and targets by depth."""
    config = model.config
    weight = model.get_output_embeddings().weight
    sums, nlls = [], []
    for n, pairs in enumerate(predictions):
        uses_draft_tokens = n > 0 and config.head_loss_tokens == "draft"
        if uses_draft_tokens:
            tokens = model.ngram_draft_vocabulary().tolist()
            pairs = [(state, torch.tensor(tokens.index(target))) for state, target in pairs if target in tokens]
        if not pairs:
            sums.append(weight.new_zeros(()))
            nlls.append(weight.new_zeros(()))
            continue
        states, targets = map(torch.stack, zip(*pairs, strict=True))
        if n == 0 or config.head_gradient == 1:
            logits = logits_of(model, states)
        else:
            logits = states @ scale_gradient(weight, config.head_gradient).T
        if uses_draft_tokens:
            logits = logits[:, tokens]
        sums.append(F.cross_entropy(logits, targets, reduction="sum", label_smoothing=config.label_smoothing))
        nlls.append(F.cross_entropy(logits, targets).detach())
    divisor = max(len(predictions[0]), 1) if num_items is None else num_items
    loss = sums[0] / divisor
    if len(sums) > 1:
        shares = [config.head_loss_decay ** (n - 1) for n in range(1, len(sums))]
        heads = sum(share * total for share, total in zip(shares, sums[1:], strict=True)) / sum(shares) / divisor
        halves = config.head_loss_weight is None
        loss = loss / 2 + heads / 2 if halves else loss + config.head_loss_weight * heads
    return loss, torch.stack(nlls)


def training_loss(
    model, input_ids, labels, attention_mask=None, position_ids=None, num_items=None, detach=True, **inputs
):
    """Return the training loss and the mean NLL of each depth."""
    batch_size, length = input_ids.shape
    hidden = hidden_states(model, input_ids, attention_mask, position_ids, **inputs)
    size = model.config.ngram_size
    numbers = documents(batch_size, length, attention_mask, position_ids)
    predictions = [[] for _ in range(size)]
    for n in range(size):
        for b in range(batch_size):
            for t in range(length - 1 - n):
                target = labels[b, t + 1 + n]
                same_document = numbers[b][t] != -1 and all(
                    numbers[b][i] == numbers[b][t] for i in range(t, t + n + 2)
                )
                # For the plain model, only the labels count.
                if target == -100 or not (same_document or size == 1):
                    continue
                prediction = hidden[b, t] if n == 0 else head_prediction(model, hidden, input_ids, b, t, n, detach)
                predictions[n].append((prediction, target))
    return combined_loss(model, predictions, num_items)


def ensembled_logits(
    model, input_ids, ensemble_lambda, attention_mask=None, position_ids=None, first_known=0, **inputs
):
    """
    Return the ensemble's logits at every position, by λ or by a list of weights; tokens before `first_known` count as
    unknown.
    """
    batch_size, length = input_ids.shape
    hidden = hidden_states(model, input_ids, attention_mask, position_ids, **inputs)
    numbers = documents(batch_size, length, attention_mask, position_ids)
    size, weights = model.config.ngram_size, ensemble_lambda
    if size == 1:
        weights = [1.0]
    elif not isinstance(weights, list):
        weights = [1 - ensemble_lambda] + [ensemble_lambda / (size - 1)] * (size - 1)
    logits = []
    for b in range(batch_size):
        for t in range(length):
            mixed = weights[0] * hidden[b, t]
            for n in range(1, size):
                past = range(t - n, t + 1)
                has_prediction = past[0] >= first_known and all(numbers[b][i] == numbers[b][t] != -1 for i in past)
                prediction = hidden[b, t]
                if has_prediction:
                    prediction = head_prediction(model, hidden, input_ids, b, t - n, n)
                mixed = mixed + weights[n] * prediction
            logits.append(logits_of(model, mixed))
    return torch.stack(logits).view(batch_size, length, -1)


def next_word_nll(logits, labels, attention_mask=None, position_ids=None):
    """Return the mean next-token NLL of `logits`, for a model with heads."""
    batch_size, length = labels.shape
    numbers = documents(batch_size, length, attention_mask, position_ids)
    nlls = [
        F.cross_entropy(logits[b, t], labels[b, t + 1])
        for b in range(batch_size)
        for t in range(length - 1)
        if labels[b, t + 1] != -100 and numbers[b][t] == numbers[b][t + 1] != -1
    ]
    return torch.stack(nlls).mean() if nlls else logits.new_zeros(())


def beam_search(model, input_ids, ensemble_lambda, num_beams, max_new_tokens, **inputs):
    """Run beam search without a cache or an end token."""
    results = []
    for b, row in enumerate(input_ids):
        row_inputs = {name: value[b : b + 1] for name, value in inputs.items()}
        beams = [(0.0, row)]
        for _ in range(max_new_tokens):
            candidates = []
            for score, tokens in beams:
                logits = ensembled_logits(model, tokens[None], ensemble_lambda, **row_inputs)[0, -1]
                for token, log_probability in enumerate(logits.log_softmax(-1).tolist()):
                    candidates.append((score + log_probability, torch.cat([tokens, tokens.new_tensor([token])])))
            beams = sorted(candidates, key=lambda candidate: -candidate[0])[:num_beams]
        results.append(beams)
    return results


def translation_loss(
    model, encoder_ids, decoder_ids, labels, encoder_mask=None, decoder_mask=None, num_items=None, detach=True
):
    """Compute `training_loss` for an encoder-decoder model, where `labels[b, t]` follows decoder token t."""
    batch_size, length = decoder_ids.shape
    inputs = {"encoder_ids": encoder_ids, "encoder_mask": encoder_mask}
    hidden = hidden_states(model, decoder_ids, decoder_mask, **inputs)
    size = model.config.ngram_size
    numbers = documents(batch_size, length, decoder_mask)
    predictions = [[] for _ in range(size)]
    for n in range(size):
        for b in range(batch_size):
            for t in range(length - n):
                same_document = all(numbers[b][i] == numbers[b][t] != -1 for i in range(t, t + n + 1))
                # For the plain model, only the labels count.
                if labels[b, t + n] == -100 or not (same_document or size == 1):
                    continue
                prediction = hidden[b, t] if n == 0 else head_prediction(model, hidden, decoder_ids, b, t, n, detach)
                predictions[n].append((prediction, labels[b, t + n]))
    return combined_loss(model, predictions, num_items)


def translation_nll(logits, labels, decoder_mask=None):
    """Return the mean next-token NLL of `logits`, for an encoder-decoder model with heads."""
    nlls = [
        F.cross_entropy(logits[b, t], labels[b, t])
        for b, t in itertools.product(*map(range, labels.shape))
        if labels[b, t] != -100 and (decoder_mask is None or decoder_mask[b, t] == 1)
    ]
    return torch.stack(nlls).mean() if nlls else logits.new_zeros(())


def bag_of_words_nll(logits, targets):
    """Return the bag-of-words loss, summed over the rows. A row's summed logits predict the set of its targets."""
    total = logits.new_zeros(())
    for row, row_targets in zip(logits, targets, strict=True):
        is_target = row_targets != -100
        probabilities = torch.sigmoid(row[is_target].sum(0))
        for token in set(row_targets[is_target].tolist()):
            total = total - torch.log(probabilities[token])
    return total
