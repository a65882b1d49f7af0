"""What a European distribution centre makes of Brazilian events."""

from .conversions import FROM_PORTUGUESE


def call_for_offers(event):
    return "CallForOffers", {
        "id": event["id"],
        "delivery": _address(event["entrega"]),
        "lines": _lines(event["linhas"]),
    }


def offer(event):
    return "Offer", {
        "id": event["id"],
        "call": event["cotacao"],
        "supplier": _address(event["fornecedor"]),
        "delivery": _address(event["entrega"]),
        "lines": _lines(event["linhas"]),
    }


def order(event):
    return "Order", {**_with_three_addresses(event), "offer": event["oferta"]}


def confirmation(event):
    return "Confirmation", {**_with_three_addresses(event), "order": event["pedido"]}


def shipment(event):
    return "Shipment", {
        "id": event["id"],
        "order": event["pedido"],
        "delivery": _address(event["entrega"]),
        "contact": event["contato"],
        "shipper": event["transportadora"],
        "lines": _lines(event["linhas"]),
    }


def invoice(event):
    return "Invoice", {
        "id": event["id"],
        "order": event["pedido"],
        "supplier": _address(event["fornecedor"]),
        "invoice": _address(event["cobranca"]),
        "total": event["total"],
        "lines": _lines(event["linhas"]),
    }


def _with_three_addresses(event):
    return {
        "id": event["id"],
        "supplier": _address(event["fornecedor"]),
        "delivery": _address(event["entrega"]),
        "invoice": _address(event["cobranca"]),
        "lines": _lines(event["linhas"]),
    }


def _address(address):
    return {
        "name": address["nome"],
        "street": address["logradouro"],
        "number": address["numero"],
        "postcode": address["cep"],
        "city": address["cidade"],
        "country": address["pais"],
    }


def _lines(lines):
    return [
        {
            "product": _product(line["produto"]),
            "quantity": line["quantidade"],
            "price": line["preco"],
        }
        for line in lines
    ]


def _product(product):
    return {
        "id": product["codigo"],
        "description": FROM_PORTUGUESE[product["descricao"]],
        "weight": product["gramas"] / 1000,
    }


EVENTS = {
    "Cotacao": call_for_offers,
    "Oferta": offer,
    "Pedido": order,
    "Confirmacao": confirmation,
    "Remessa": shipment,
    "Fatura": invoice,
}
