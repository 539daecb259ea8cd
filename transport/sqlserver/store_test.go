package sqlserver

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/tablequeue/storetest"
)

func TestPartsThatTheStoreLacks(t *testing.T) {
	_, s := newFake(t, nil)
	storetest.Lacks(t, s.parts(), "Waker", "FaultFinder", "Warner")
}
