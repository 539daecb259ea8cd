package asb_test

import (
	"context"
	"testing"
	"time"
)

// patience bounds every wait for the broker in these tests.
const patience = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
