package resilience_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

func TestExecutionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := resilience.NewCatalog(resilience.Policy{
			Name: "gateway", Timeout: time.Second, Retry: resilience.Retry{Max: 1, Delay: 2 * time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		r := resilience.NewRunner(c, resilience.LogTo(slog.New(slog.NewTextHandler(&text, nil))))
		err = r.Run(t.Context(), "gateway", func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("no answer")
		})
		if err == nil {
			t.Error("no error")
		}
		for _, want := range []string{
			`level=WARN msg="an attempt has timed out" policy=gateway attempt=1 limit=1s`,
			`level=INFO msg="an attempt failed and is made again" policy=gateway retry=1 after=2s error="the attempt has timed out after 1s: no answer"`,
			`level=WARN msg="a function failed, and is not retried any more" policy=gateway`,
		} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s is not in\n%s", want, text.String())
			}
		}
		text.Reset()
		if err := r.Run(t.Context(), "gateway", func(context.Context) error { return nil }); err != nil || text.Len() > 0 {
			t.Errorf("%v, logged %s", err, text.String())
		}
	})
}
