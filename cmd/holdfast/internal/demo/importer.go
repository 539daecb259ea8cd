package demo

import (
	"context"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/serialization"
)

// ImportLines has the lines of the input sent to sales, from the First-th on (counted from 0
// and without empty lines): some of them, and then a message of its own kind for the rest.
//
// So how far the import has come is itself a message: the lines, the next
// ImportLines and the ledger's row leave in one transaction, and a kill at any moment
// neither leaves out a line nor sends one twice.
type ImportLines struct {
	First int `json:"first"`
}

// importChunk is how many lines leave at once.
const importChunk = 25

// rawLine is a line on its way to sales: its bytes are the body, whatever they are.
type rawLine struct{ text []byte }

// rawSerializer writes a rawLine as it is and everything else as JSON.
type rawSerializer struct{ serialization.Serializer }

func (s rawSerializer) Marshal(v any) ([]byte, error) {
	if line, ok := v.(rawLine); ok {
		return line.text, nil
	}
	return s.Serializer.Marshal(v)
}

// importer makes the endpoint that sends the lines.
func (s *shop) importer() (*endpoint.Endpoint, error) {
	cfg := s.config(importing, endpoint.Handle(s.importLines))
	cfg.Concurrency = 1
	cfg.Serializers = []serialization.Serializer{rawSerializer{serialization.JSON}}
	cfg.Messages = []endpoint.Message{
		endpoint.Command[ImportLines](importType),
		endpoint.Command[rawLine](placeOrderType),
	}
	cfg.Routes = []endpoint.Route{
		endpoint.RouteTo[ImportLines](importing),
		endpoint.RouteTo[rawLine](sales),
	}
	return endpoint.New(cfg)
}

func (s *shop) importLines(ctx context.Context, se *endpoint.Session, m ImportLines) error {
	if m.First < 0 || m.First >= len(s.input.Lines) {
		return fmt.Errorf("import from line %d: the input has %d", m.First, len(s.input.Lines))
	}
	again, err := s.ledger.imported(ctx, m.First)
	if err != nil || again { // started twice: the first one goes on
		return err
	}
	lines := s.input.Lines[m.First:]
	lines = lines[:min(importChunk, len(lines))]
	for _, line := range lines {
		no := strconv.Itoa(line.No)
		err := se.Send(ctx, rawLine{line.Text},
			endpoint.MessageID(s.input.Hash+"-"+no), endpoint.Header(lineHeader, no))
		if err != nil {
			return err
		}
	}
	if next := m.First + len(lines); next < len(s.input.Lines) {
		if err := se.Send(ctx, ImportLines{First: next}); err != nil {
			return err
		}
	}
	return s.ledger.recordImport(ctx, se, m.First, len(lines))
}
