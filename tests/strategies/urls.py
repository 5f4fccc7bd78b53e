"""The admin alone, so that these tests need nothing of the gateway."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
