"""The admin, which is all that the demo shows in a browser."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
