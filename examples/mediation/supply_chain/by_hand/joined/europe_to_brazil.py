"""What a Brazilian supermarket makes of European events."""

from .conversions import TO_PORTUGUESE


def call_for_offers(event):
    return "Cotacao", {
        "id": event["id"],
        "entrega": _address(event["delivery"]),
        "linhas": _lines(event["lines"]),
    }


def offer(event):
    return "Oferta", {
        "id": event["id"],
        "cotacao": event["call"],
        "fornecedor": _address(event["supplier"]),
        "entrega": _address(event["delivery"]),
        "linhas": _lines(event["lines"]),
    }


def order(event):
    return "Pedido", {**_with_three_addresses(event), "oferta": event["offer"]}


def confirmation(event):
    return "Confirmacao", {**_with_three_addresses(event), "pedido": event["order"]}


def shipment(event):
    return "Remessa", {
        "id": event["id"],
        "pedido": event["order"],
        "entrega": _address(event["delivery"]),
        "contato": event["contact"],
        "transportadora": event["shipper"],
        "linhas": _lines(event["lines"]),
    }


def invoice(event):
    return "Fatura", {
        "id": event["id"],
        "pedido": event["order"],
        "fornecedor": _address(event["supplier"]),
        "cobranca": _address(event["invoice"]),
        "total": event["total"],
        "linhas": _lines(event["lines"]),
    }


def _with_three_addresses(event):
    return {
        "id": event["id"],
        "fornecedor": _address(event["supplier"]),
        "entrega": _address(event["delivery"]),
        "cobranca": _address(event["invoice"]),
        "linhas": _lines(event["lines"]),
    }


def _address(address):
    return {
        "nome": address["name"],
        "logradouro": address["street"],
        "numero": address["number"],
        "cep": address["postcode"],
        "cidade": address["city"],
        "pais": address["country"],
    }


def _lines(lines):
    return [
        {
            "produto": _product(line["product"]),
            "quantidade": line["quantity"],
            "preco": line["price"],
        }
        for line in lines
    ]


def _product(product):
    return {
        "codigo": product["id"],
        "descricao": TO_PORTUGUESE[product["description"]],
        "gramas": product["weight"] * 1000,
    }


EVENTS = {
    "CallForOffers": call_for_offers,
    "Offer": offer,
    "Order": order,
    "Confirmation": confirmation,
    "Shipment": shipment,
    "Invoice": invoice,
}
