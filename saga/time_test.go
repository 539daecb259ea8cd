package saga_test

import (
	"errors"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
)

const hour = time.Hour

var errNo = errors.New("no")

// sleep lets virtual time pass.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// idOf returns the id of an instance of the saga "orders", as in headers.
func idOf(key string) string { return uuid.Text(saga.ID("sales", "orders", key)) }
