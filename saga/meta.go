package saga

import (
	"encoding/json"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/strictjson"
)

// meta is the part of a record that belongs to the package. It is stored as JSON.
type meta struct {
	// Version is the version of the state.
	Version int `json:"version"`
	// Starter is the message that began the instance.
	Starter starter `json:"starter,omitzero"`
	// Timeouts are the tokens of the waiting time-outs, by name.
	Timeouts map[string]string `json:"timeouts,omitempty"`
}

// starter is the message that began an instance, for replies to it.
type starter struct {
	MessageID      string `json:"message,omitempty"`
	ReplyTo        string `json:"reply_to,omitempty"`
	CorrelationID  string `json:"correlation,omitempty"`
	ConversationID string `json:"conversation,omitempty"`
	SagaID         string `json:"saga,omitempty"` // of the saga that sent it
	SagaType       string `json:"saga_type,omitempty"`
}

// parseMeta returns the meta of a record.
func parseMeta(text []byte) (m meta, err error) {
	if err := strictjson.Unmarshal(text, &m); err != nil {
		return meta{}, fmt.Errorf("the record of the instance is damaged: %w", err)
	}
	return m, nil
}

// text returns m as JSON.
func (m *meta) text() []byte {
	text, _ := json.Marshal(m) // a struct of texts
	return text
}

// timeoutOf returns the name of the waiting time-out with a token.
func (m *meta) timeoutOf(token string) (name string, ok bool) {
	for name, t := range m.Timeouts {
		if t == token {
			return name, token != ""
		}
	}
	return "", false
}
