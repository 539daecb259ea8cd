package rabbitmq

import (
	"encoding/json"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// LostQueue is the queue of delayed messages whose destination was gone when they were due.
const LostQueue = delayLost

// DelayedTo tells where a message of [LostQueue] was to go: one of the two, or none of both when it has come
// there in another way. The event is the name of the exchange of its type.
func DelayedTo(m *transport.Message) (queue, event string) {
	var deaths []struct {
		Keys []string `json:"routing-keys"`
	}
	if json.Unmarshal([]byte(m.Native["x-death"]), &deaths) != nil || len(deaths) == 0 || len(deaths[0].Keys) == 0 {
		return "", ""
	}
	destination := deaths[0].Keys[0]
	destination = destination[min(delays.Overhead(), len(destination)):]
	if queue, ok := strings.CutPrefix(destination, toQueue("")); ok {
		return queue, ""
	}
	event, ok := strings.CutPrefix(destination, "type.")
	if !ok {
		return "", ""
	}
	return "", event
}
