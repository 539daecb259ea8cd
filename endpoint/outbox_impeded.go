package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/transport"
)

// maxImpeded is the time after which a message fails that finds a full disk at each attempt, while
// the database stores other messages.
const maxImpeded = 10 * time.Minute

// impediment is the time in which the attempts at one delivery find a full disk, and the database
// stores other messages: the disk of one tablespace is full, or a query of the handler fills the
// disk by itself. The message waits, and no other one does.
type impediment struct {
	since time.Time // zero: there was none
	pause backoff.Backoff
}

// isImpeded reports whether an attempt has failed because of a full disk or the like, and the
// database stores something nevertheless.
func (a *attempt) isImpeded(ctx context.Context, tx transport.Tx, down error) bool {
	d, ok := tx.(transport.OutageDetector)
	if !ok {
		return false
	}
	if _, known := a.live.outage.failing(); known != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, outageProbe)
	defer cancel()
	return d.Outage(ctx, down) && a.live.stores(ctx) == nil
}

// awaitRoom waits, without a slot, before the next attempt at an impeded message. When the message
// has waited for long, it fails. The result is that of awaitOutbox.
func (in *incoming) awaitRoom(ctx context.Context, a *attempt, err error) (again bool) {
	p := &in.impediment
	if p.since.IsZero() {
		p.since, p.pause = time.Now(), backoff.Backoff{Min: outageMin, Max: outageMax}
		in.log().WarnContext(ctx, "a message finds that the database is full, and the database stores "+
			"others: the message waits without using up a retry", slog.String("message", in.logID()),
			slog.Duration("at_most", maxImpeded), slog.Any("error", err))
	} else if time.Since(p.since) >= maxImpeded {
		return in.act(ctx, a, failed{&impededError{errtree.Mark{Err: err}}})
	}
	in.giveUpKeys()
	in.slot.Free()
	return in.waitOut(ctx, a, p.pause.Next(), nil)
}

// impededError is the failure of a message that was impeded for long.
type impededError struct{ errtree.Mark }

func (e *impededError) Error() string {
	return fmt.Sprintf("the database stores other messages, and not this one for %v: %v", maxImpeded,
		e.Mark.Error())
}
