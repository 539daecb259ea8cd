package serialization_test

import (
	"encoding/xml"
	"fmt"

	"github.com/holdfast-go/holdfast/serialization"
)

// xmlSerializer is a Serializer of one's own.
type xmlSerializer struct{}

func (xmlSerializer) ContentType() string                { return "application/xml" }
func (xmlSerializer) Marshal(v any) ([]byte, error)      { return xml.Marshal(v) }
func (xmlSerializer) Unmarshal(body []byte, v any) error { return xml.Unmarshal(body, v) }

func ExampleSerializer() {
	type OrderPlaced struct{ ID int }
	for _, s := range []serialization.Serializer{serialization.JSON, xmlSerializer{}} {
		body, err := s.Marshal(OrderPlaced{ID: 17})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %s\n", s.ContentType(), body)
	}
	// Output:
	// application/json: {"ID":17}
	// application/xml: <OrderPlaced><ID>17</ID></OrderPlaced>
}
