package endpoint

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/recoverability"
)

// awaitRetry waits, without a slot and without its keys, until an inline retry is due. It reports
// whether the retry follows. If the endpoint stops meanwhile, the message is released: it has not
// failed for good.
func (in *incoming) awaitRetry(ctx context.Context, a *attempt, after time.Duration) (again bool) {
	in.inline++
	in.recovery = nil
	in.giveUpKeys()
	in.slot.Free()
	if after > 0 {
		a.waitFor(ctx, after, nil)
	}
	if out := a.stopped(ctx); out != nil {
		return in.act(ctx, a, out)
	}
	if in.slot.Regain(ctx) != nil {
		return in.act(ctx, a, cmp.Or[outcome](a.stopped(ctx), interrupted{}))
	}
	return true
}

// findPolicy logs that the endpoint does not have the policy that the message names. Then the
// message is retried as any other of its type.
func (r *recovery) findPolicy(ctx context.Context, f recoverability.Failure) {
	name := cmp.Or(f.Headers.Get(header.HoldfastPolicy), f.Headers.Get(header.HoldfastRetryPolicy))
	if name == "" {
		return
	}
	if _, ok := f.Config.NamedPolicy(name); ok {
		return
	}
	r.log().WarnContext(ctx, "a message names a retry policy that the endpoint does not have: its type's retries count; "+
		"add the policy to Recoverability.Policies", slog.String("message", r.logID()),
		slog.String("policy", errtree.Cut(name, maxLogged)))
}
